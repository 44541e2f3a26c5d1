// The client as a classic script. The page has its functions in `window.ingestd`, with or without the first script.

import { api } from './api.js'

if (!globalThis.ingestd?.init) globalThis.ingestd = api // it may be an element with this id
