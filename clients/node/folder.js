// The queue on disk: each event is a file. Its name begins with the time, so names sort by age.
// A file appears under its name when it is complete, and is removed when ingestd has taken or refused the event. So the
// end of a process loses no event. Several processes may share a folder.

import { randomBytes } from 'node:crypto'
import { mkdirSync, opendirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { link, open, opendir, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join } from 'node:path'

const COUNTED_EVERY = 10_000 // milliseconds
const COUNTED_FOR = 0.01 // the most of the time that counting takes
const LISTED = 20_000 // names: a queue may be much longer
const HELD = 60_000 // milliseconds
const ABANDONED = 3600e6 // microseconds after which an unfinished file has no writer
const LOCKED = 120e3 // milliseconds after which a lock has no holder

/** As many events wait as may wait. This one is not kept. */
export class QueueFull extends Error {
  name = 'QueueFull'
}

const now = () => Date.now() * 1000
const name = (stamp) => `${stamp}`.padStart(16, '0')
const isFull = ({ code }) => code === 'ENOSPC' || code === 'EDQUOT'
/** Threads of a process have one pid, and so have processes of containers that follow each other. */
const ME = `${hostname()} ${process.pid} ${performance.timeOrigin}`

export class QueueFolder {
  #path
  #most
  #stamp = 0
  #count = 0
  #countUntil = -Infinity
  #unreadable = new Set()

  constructor(path, most) {
    mkdirSync(path, { mode: 0o700, recursive: true })
    this.#path = path
    this.#most = most
  }

  add(event) {
    const begun = performance.now()
    if (begun > this.#countUntil) {
      this.#count = this.#counted()
      const end = performance.now()
      this.#countUntil = end + Math.max(COUNTED_EVERY, (end - begun) / COUNTED_FOR)
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

  #counted() {
    const folder = opendirSync(this.#path)
    let count = 0
    for (let entry; (entry = folder.readSync()); ) if (entry.name.endsWith('.json')) count++
    folder.closeSync()
    return count
  }

  async *#all() {
    for await (const { name: each } of await opendir(this.#path, { bufferSize: 1000 })) {
      if (each.endsWith('.json')) yield each
      else if (each.endsWith('.part') && each < name(now() - ABANDONED)) await this.#unlink(each)
    }
  }

  /** The names of the events that wait, oldest first, not all at once. */
  async *pages() {
    for (let last = '', goesOn = true; goesOn; ) {
      let names = []
      for await (const each of this.#all()) {
        if (each > last && names.push(each) === 2 * LISTED) names = names.sort().slice(0, LISTED)
      }
      names = names.sort().slice(0, LISTED)
      goesOn = names.length === LISTED
      last = names.at(-1)
      yield names
    }
  }

  /** The name of the newest event; empty if none waits. */
  async newest() {
    let newest = ''
    for await (const each of this.#all()) if (each > newest) newest = each
    return newest
  }

  /** Whether this event or one with a smaller name waits. */
  async hasUntil(newest) {
    for await (const each of this.#all()) if (each <= newest) return true
    return false
  }

  /** The event; nothing if it cannot be read, is no longer there, or is not to be sent yet. */
  async read(each) {
    try {
      const file = await open(join(this.#path, each))
      try {
        const wait = (await file.stat()).mtimeMs - Date.now()
        // A file that is held for longer was written while the clock was wrong.
        return wait > 0 && wait <= HELD ? undefined : await file.readFile('utf8')
      } finally {
        await file.close()
      }
    } catch (error) {
      if (error.code !== 'ENOENT' && !this.#unreadable.has(each)) {
        this.#unreadable.add(each)
        console.error(`ingestd: ${each} cannot be read and stays in the queue: ${error.message}`)
      }
    }
  }

  remove(each) {
    this.#count--
    return this.#unlink(each)
  }

  #unlink(each) {
    return rm(join(this.#path, each), { force: true })
  }

  /** No process sends the event for a minute: its file has that time. */
  async hold(each) {
    const at = (Date.now() + HELD) / 1000
    await utimes(join(this.#path, each), at, at).catch(() => {}) // another process has removed it
  }

  /** Whether this process may send now: one of them at a time does. Node.js has no locks, so a file names the holder. */
  async lock() {
    const path = join(this.#path, 'lock.pid')
    const taken = async () => {
      // As a link, the file has the name of its holder from its beginning.
      const part = join(this.#path, `${name(now())}-${randomBytes(4).toString('hex')}.part`)
      try {
        await writeFile(part, ME, { mode: 0o600 })
        await link(part, path)
      } finally {
        await rm(part, { force: true })
      }
      return true
    }
    try {
      return await taken()
    } catch (error) {
      if (isFull(error)) return true // else it would stay full
      if (error.code !== 'EEXIST') throw error
    }
    const holder = await readFile(path, 'utf8').catch(() => '')
    const lock = await stat(path).catch(() => {})
    if (!lock) return false // the holder has just ended
    const age = Math.abs(Date.now() - lock.mtimeMs)
    if (age < LOCKED && isAlive(holder)) return false
    // Two processes may both get here: then both send, and ingestd stores each event once.
    await rm(path, { force: true })
    return taken().catch(() => false)
  }

  async keepLock() {
    await utimes(join(this.#path, 'lock.pid'), new Date(), new Date()).catch(() => {}) // another process took it over
  }

  async unlock() {
    await rm(join(this.#path, 'lock.pid'), { force: true })
  }
}

/** False only if it is certain: the holder is of this host, and gone. */
function isAlive(holder) {
  const [host, pid] = holder.split(' ')
  if (host !== hostname() || holder === ME) return true
  if (Number(pid) === process.pid) return false // of an earlier container
  try {
    process.kill(Number(pid), 0)
    return true
  } catch (error) {
    return error.code !== 'ESRCH'
  }
}
