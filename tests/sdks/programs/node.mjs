// Makes the calls of standard input with an SDK for Node.js. Each line is a JSON array of [method, message].
// After each line it flushes. At the end of the input it waits for every callback, and prints the failures as a JSON
// array.
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'

export async function send(analytics) {
  const failures = []
  let waiting = 0
  const flush = () => analytics.flush().catch(() => undefined) // the callbacks get the failure too
  for await (const line of createInterface({ input: process.stdin })) {
    for (const [method, message] of JSON.parse(line)) {
      waiting += 1
      if (message.timestamp) message.timestamp = new Date(message.timestamp)
      analytics[method](message, (error) => {
        waiting -= 1
        if (error) failures.push(String(error))
      })
    }
    flush()
  }
  while (waiting > 0) {
    await flush()
    await sleep(10)
  }
  console.log(JSON.stringify(failures))
  process.exit()
}
