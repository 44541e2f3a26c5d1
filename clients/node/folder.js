// The queue on disk: each event is a file. Its name begins with the time, so names sort by age.
// A file appears under its name when it is complete, and is removed when ingestd has taken or refused the event. So the
// end of a process loses no event. Several processes may share a folder.

import { randomBytes } from 'node:crypto'
import { mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { link, open, readFile, readdir, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join } from 'node:path'

const COUNTED_EVERY = 10_000 // milliseconds
const ABANDONED = 3600e6 // microseconds after which an unfinished file has no writer
const LOCKED = 120e3 // milliseconds after which a lock has no holder

/** As many events wait as may wait. This one is not kept. */
export class QueueFull extends Error {
  name = 'QueueFull'
}

const now = () => Date.now() * 1000
const name = (stamp) => `${stamp}`.padStart(16, '0')
/** The folders in which this process sends. */
const held = new Set()

export class QueueFolder {
  #path
  #most
  #stamp = 0
  #count = 0
  #countedAt = -Infinity

  constructor(path, most) {
    mkdirSync(path, { mode: 0o700, recursive: true })
    this.#path = path
    this.#most = most
  }

  add(event) {
    if (performance.now() - this.#countedAt > COUNTED_EVERY) {
      this.#count = readdirSync(this.#path).filter((each) => each.endsWith('.json')).length
      this.#countedAt = performance.now()
    }
    if (this.#count >= this.#most) throw new QueueFull(`${this.#count} events wait in ${this.#path}`)
    this.#count++
    this.#stamp = Math.max(this.#stamp + 1, now())
    const path = join(this.#path, `${name(this.#stamp)}-${randomBytes(4).toString('hex')}`)
    try {
      writeFileSync(`${path}.part`, event)
      renameSync(`${path}.part`, `${path}.json`)
    } catch (error) {
      rmSync(`${path}.part`, { force: true })
      throw error
    }
  }

  /** The names of the events that wait, oldest first. */
  async names() {
    const found = await readdir(this.#path)
    for (const each of found) if (each.endsWith('.part') && each < name(now() - ABANDONED)) await this.#unlink(each)
    return found.filter((each) => each.endsWith('.json')).sort()
  }

  async hasBefore(stamp) {
    return (await this.names()).some((each) => each < name(stamp))
  }

  /** A time that is later than each event of this process. */
  newest() {
    return Math.max(this.#stamp, now()) + 1
  }

  /** The event; nothing if it is no longer there, or not to be sent yet. */
  async read(each) {
    try {
      const file = await open(join(this.#path, each))
      try {
        return (await file.stat()).mtimeMs <= Date.now() ? await file.readFile('utf8') : undefined
      } finally {
        await file.close()
      }
    } catch (error) {
      if (error.code !== 'ENOENT') throw error
    }
  }

  remove(each) {
    this.#count--
    return this.#unlink(each)
  }

  #unlink(each) {
    return rm(join(this.#path, each), { force: true })
  }

  /** No process sends the event before that many milliseconds are over: its file has that time. */
  async hold(each, wait) {
    const at = (Date.now() + wait) / 1000
    await utimes(join(this.#path, each), at, at).catch(() => {}) // another process has removed it
  }

  /** Whether this process may send now: one of them at a time does. Node.js has no locks, so a file names the holder. */
  async lock() {
    const path = join(this.#path, 'lock.pid')
    const taken = async () => {
      // As a link, the file has the name of its holder from its beginning.
      const part = join(this.#path, `${name(now())}-${randomBytes(4).toString('hex')}.part`)
      await writeFile(part, `${hostname()} ${process.pid}`, { mode: 0o600 })
      await link(part, path).finally(() => rm(part))
      held.add(this.#path)
      return true
    }
    try {
      return await taken()
    } catch (error) {
      if (error.code !== 'EEXIST') throw error
    }
    if (held.has(this.#path)) return false
    const holder = await readFile(path, 'utf8').catch(() => '')
    const lock = await stat(path).catch(() => {})
    if (!lock) return false // the holder has just ended
    const age = Date.now() - lock.mtimeMs
    if (age < LOCKED && isAlive(holder)) return false
    // Two processes may both get here: then both send, and ingestd stores each event once.
    await rm(path, { force: true })
    return taken().catch(() => false)
  }

  async keepLock() {
    await utimes(join(this.#path, 'lock.pid'), new Date(), new Date()).catch(() => {}) // another process took it over
  }

  async unlock() {
    held.delete(this.#path)
    await rm(join(this.#path, 'lock.pid'), { force: true })
  }
}

/** False only if it is certain: the holder is of this host, and gone. */
function isAlive(holder) {
  const [host, pid] = holder.split(' ')
  if (host !== hostname()) return true
  if (Number(pid) === process.pid) return false // of an earlier container
  try {
    process.kill(Number(pid), 0)
    return true
  } catch (error) {
    return error.code !== 'ESRCH'
  }
}
