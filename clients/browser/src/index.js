// The client as a module.

export {
  alias, anonymousId, consent, flush, group, identify, init, page, ready, register, reset, track,
} from './api.js'
