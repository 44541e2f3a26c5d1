// Offers `send` to the test: it makes the calls of an array of [method, message] with an SDK for browsers. `isReady` is
// true once the SDK has its settings. Until then it keeps calls for later.
const PARAMETERS = {
  track: ({ event, properties }) => [event, properties],
  page: ({ category, name, properties }) => [category, name, properties],
  screen: ({ category, name, properties }) => [category, name, properties],
  identify: ({ userId, traits }) => [userId, traits],
  group: ({ groupId, traits }) => [groupId, traits],
  alias: ({ userId, previousId }) => [userId, previousId],
}

export function offer(analytics) {
  analytics.ready(() => {
    window.isReady = true
  })
  window.send = (calls) => {
    for (const [method, message] of calls) analytics[method](...PARAMETERS[method](message))
  }
}
