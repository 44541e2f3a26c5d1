// Makes calls with the client for Node.js. Each line of the input is a call; each line printed is its result.

import { writeSync } from 'node:fs'
import { createInterface } from 'node:readline'

import { Client, KeyRefused, QueueFull } from '../../../clients/node/client.js'

const show = (result) => writeSync(1, `${JSON.stringify(result)}\n`)

const [host, key, secret, folder, given] = process.argv.slice(2)
const { most, timeout } = JSON.parse(given)
const onRefused = (event, problem) => show({ refused: event.messageId, code: problem.code })
const client = new Client({
  host, key, secret, tenant: 'shop', folder, most, timeout: timeout * 1000, interval: 10, onRefused,
})
for await (const line of createInterface({ input: process.stdin })) {
  const [method, ...given] = JSON.parse(line)
  try {
    show(method === 'flush' ? await client.flush(given[0] * 1000) : client[method](...given))
  } catch (error) {
    if (['ENOSPC', 'EROFS'].includes(error.code)) show({ error: 'disk' })
    else if (error instanceof KeyRefused || error instanceof QueueFull) show({ error: error.constructor.name })
    else throw error
  }
}
