-- Runs the operations of one batch, in order and atomically. link.py sends the batches.
--
-- KEYS[1] is the prefix of all keys. ARGV[1] is the id of the batch. ARGV[2] is the list of operations (MessagePack),
-- each a list of its name and arguments. ARGV[4] is given if the caller waits for replicas. Returns (as MessagePack) a
-- list with an answer for each operation: {true, result} or {false, message}.
--
-- ARGV[3] is the sender's knowledge of the store: its id ('' if unknown), the newest position of the journal, and the
-- count of heartbeats. A store with another id, or with lower numbers, has lost data. Then the script does nothing and
-- returns the error STORELOST.
--
-- A batch is sent again if its answer was lost. Its writes are not repeated: their answers are kept for that.

local prefix = KEYS[1]
local REMEMBERED = 600000 -- milliseconds
-- The daemons' clocks decide what has expired. Redis removes expired keys this many milliseconds later.
local MARGIN = 600000

local ops, reads = {}, {}

local function message_of(failure)
  return type(failure) == 'table' and failure.err or tostring(failure)
end

-- State: a value is stored as "<expires>|<value>". A value without an expiry has an empty <expires>.

-- A batch needs the same few numbers many times, and formatting takes longer than a look-up.
local texts = {}

local function text(number)
  local found = texts[number]
  if not found then
    found = string.format('%d', number)
    texts[number] = found
  end
  return found
end

local function parsed(raw)
  if not raw then return nil end
  local bar = string.find(raw, '|', 1, true)
  return string.sub(raw, bar + 1), tonumber(string.sub(raw, 1, bar - 1))
end

-- Raw values by key, as far as they were read; false without a value. And their parsed values and expiries.
local known, values, ends = {}, {}, {}

local function read(key)
  if known[key] == nil then
    local raw = redis.pcall('GET', key)
    known[key] = type(raw) == 'string' and raw
  end
  return known[key]
end

local function live(key, now)
  local value = values[key]
  if value == nil then
    value, ends[key] = parsed(read(key))
    values[key] = value or false
  end
  local expires = ends[key]
  if not value or (expires and expires < now) then return nil end
  return value, expires
end

local function keep(key, raw, value, expires)
  known[key], values[key], ends[key] = raw, value, expires
end

local function set(key, value, expires, now)
  local raw = (expires and text(expires) or '') .. '|' .. value
  if expires then
    redis.call('SET', key, raw, 'PX', text(math.max(expires - now, 0) + MARGIN))
  else
    redis.call('SET', key, raw)
  end
  keep(key, raw, value, expires)
end

-- An entry with fields has a sorted set of their names, by time.
local function names_of(key)
  return key .. ':names'
end

local function delete(key)
  redis.call('DEL', key, names_of(key))
  keep(key)
end

-- Writing the same value never shortens its lifetime.
local function write(key, value, ttl, now, old, expires)
  if old == value and (not expires or (ttl and now + ttl <= expires)) then return end
  set(key, value, ttl and now + ttl, now)
end

reads.get = function(now, key)
  return live(prefix .. key, now) or false
end

reads.claimed = function(now, key)
  local found = reads.get(now, key)
  -- The answer tells the caller that its event is stored. So write something: WAIT covers this connection's writes and
  -- all earlier ones.
  if found and ARGV[4] then ops.probe() end
  return found
end

ops.put = function(now, key, value, ttl)
  local old, expires = live(prefix .. key, now)
  write(prefix .. key, value, ttl, now, old, expires)
  return old or false
end

ops.swap = function(now, key, expected, value, ttl)
  local old, expires = live(prefix .. key, now)
  if old ~= expected then return false end
  write(prefix .. key, value, ttl, now, old, expires)
  return true
end

ops.renew = function(now, key, candidate, ttl)
  local old, expires = live(prefix .. key, now)
  write(prefix .. key, old or candidate, ttl, now, old, expires)
  return {old or candidate, not old}
end

ops.delete = function(_, key)
  delete(prefix .. key)
  return false
end

local function only(key, kind)
  if redis.call('TYPE', key).ok ~= kind then delete(key) end
end

-- A field is stored as "<at>|<value>". The set of names has SIZE as one more member, which is no name because it is not
-- UTF-8. Its score is the size of all names and values in bytes. The score is negative, so that SIZE comes first.
local SIZE = '\255'

local function keep_size(key, names, size)
  if redis.call('EXISTS', key) == 1 then
    redis.call('ZADD', names, text(-size - 1), SIZE)
  else
    redis.call('DEL', names)
  end
end

-- The size of all fields in bytes. Adds the names of fields that an older program has written.
local function size_of(key, names)
  local score = redis.call('ZSCORE', names, SIZE)
  if score and redis.call('ZCARD', names) == redis.call('HLEN', key) + 1 then return -score - 1 end
  redis.call('DEL', names)
  local found, size = redis.call('HGETALL', key), 0
  for index = 1, #found, 2 do
    local value, at = parsed(found[index + 1])
    redis.call('ZADD', names, text(at), found[index])
    size = size + #found[index] + #value
  end
  return size
end

local PART = 500 -- fields of one command: Lua's stack is limited

-- Sets fields, each a list of name, time and value. Returns by how many bytes they have grown.
local function set_fields(key, names, fields, later_stays)
  local grown = 0
  for first = 1, #fields, PART do
    local asked, set, scored = {}, {}, {}
    for index = first, math.min(first + PART - 1, #fields) do asked[#asked + 1] = fields[index][1] end
    for index, raw in ipairs(redis.call('HMGET', key, unpack(asked))) do
      local name, at, value = unpack(fields[first + index - 1])
      local old, old_at = parsed(raw)
      if not (later_stays and old and old_at > at) then
        local time = text(at)
        set[#set + 1], set[#set + 2] = name, time .. '|' .. value
        scored[#scored + 1], scored[#scored + 2] = time, name
        grown = grown + #value - (old and #old or -#name)
      end
    end
    if #set > 0 then
      redis.call('HSET', key, unpack(set))
      redis.call('ZADD', names, unpack(scored))
    end
  end
  return grown
end

-- Removes fields in the order of `some`, while `wanted` says so. Returns their number and their bytes.
local function drop_fields(key, names, some, wanted)
  local gone, bytes = {}, 0
  for index, raw in ipairs(redis.call('HMGET', key, unpack(some))) do
    if not wanted(#gone, bytes) then break end
    gone[index], bytes = some[index], bytes + #some[index] + #(parsed(raw) or '')
  end
  redis.call('HDEL', key, unpack(gone))
  redis.call('ZREM', names, unpack(gone))
  return #gone, bytes
end

local function drop_oldest(key, names, size, most, most_bytes)
  local before, dropped = redis.call('HLEN', key), 0
  local function is_over(more, bytes)
    return (most and before - dropped - more > most) or (most_bytes and size - bytes > most_bytes)
  end
  local part = 1
  while is_over(0, 0) do
    part = math.min(math.max(part, most and before - dropped - most or 1), PART)
    local more, bytes = drop_fields(key, names, redis.call('ZRANGE', names, 1, part), is_over)
    dropped, size, part = dropped + more, size - bytes, 2 * part
  end
  return dropped, size
end

ops.merge = function(_, key, fields, most, most_bytes)
  key = prefix .. key
  only(key, 'hash')
  local names = names_of(key)
  local dropped, size = 0, size_of(key, names)
  size = size + set_fields(key, names, fields, true)
  keep_size(key, names, size)
  dropped, size = drop_oldest(key, names, size, most, most_bytes)
  if dropped > 0 then keep_size(key, names, size) end
  return dropped
end

reads.fields = function(_, key)
  local found = redis.pcall('HGETALL', prefix .. key)
  return found.err and {} or found
end

-- Sets: the empty member is not a member. Its score is the expiry of the set, negative so that it comes first.

local function life(key)
  local score = redis.pcall('ZSCORE', key, '')
  return type(score) == 'string' and -tonumber(score) or nil
end

local function live_for(key, expires, now)
  redis.call('ZADD', key, -expires, '')
  redis.call('PEXPIRE', key, math.max(expires - now, 0) + MARGIN)
end

local function tidy(key)
  local count = redis.call('ZCARD', key)
  if count == 1 and life(key) then redis.call('DEL', key) end
end

ops.push = function(now, key, member, at, keep, first, since, ttl)
  key = prefix .. key
  only(key, 'zset')
  local expires = life(key)
  if expires and expires < now then
    redis.call('DEL', key)
    expires = nil
  end
  local new = redis.call('EXISTS', key) == 0
  redis.call('ZADD', key, at, member)
  if new and ttl then
    live_for(key, now + ttl, now)
  elseif expires and not ttl then
    redis.call('ZREM', key, '')
    redis.call('PERSIST', key)
  elseif expires and now + ttl > expires then
    live_for(key, now + ttl, now)
  end
  local above = life(key)
  if since then
    redis.call('ZREMRANGEBYSCORE', key, above and '(' .. text(-above) or '-inf', '(' .. text(since))
  end
  local before = above and 1 or 0
  local excess = redis.call('ZCARD', key) - before - keep
  if excess > 0 then
    local from = before + (first and 1 or 0)
    redis.call('ZREMRANGEBYRANK', key, from, from + excess - 1)
  end
  tidy(key)
  return false
end

ops.pull = function(_, key, members)
  for _, member in ipairs(members) do redis.pcall('ZREM', prefix .. key, member) end
  tidy(prefix .. key)
  return false
end

reads.window = function(now, key, since, till)
  key = prefix .. key
  local expires = life(key)
  if expires and expires < now then return {} end
  local from = expires and '(' .. text(-expires) or '-inf'
  local found = redis.pcall(
    'ZRANGEBYSCORE', key, since or from, till or '+inf', 'WITHSCORES'
  )
  return found.err and {} or found
end

-- Whole entries, for transactions that work in memory.
reads.entry = function(_, key)
  local raw = read(prefix .. key)
  if raw then return {raw} end
  local found = redis.pcall('HGETALL', prefix .. key)
  return found.err and {} or {false, found}
end

reads.set = function(_, key)
  local found = redis.pcall('ZRANGE', prefix .. key, 0, -1, 'WITHSCORES')
  return found.err and {} or found
end

-- Rows that such transactions write.

local rows = {}
local ARGUMENTS = 1000 -- the most of one command, an even number: Lua's stack is limited

rows.value = function(now, key, value, expires)
  set(prefix .. key, value, expires, now)
end

rows.fields = function(_, key, fields, gone)
  key = prefix .. key
  only(key, 'hash')
  local names = names_of(key)
  local size = size_of(key, names)
  for first = 1, #gone, PART do
    local some = {unpack(gone, first, math.min(first + PART - 1, #gone))}
    local _, bytes = drop_fields(key, names, some, function() return true end)
    size = size - bytes
  end
  size = size + set_fields(key, names, fields)
  keep_size(key, names, size)
end

rows.gone = function(_, key)
  delete(prefix .. key)
end

rows.members = function(now, key, members, gone, expires)
  key = prefix .. key
  only(key, 'zset')
  for _, member in ipairs(gone) do redis.call('ZREM', key, member) end
  if #members == 0 and redis.call('EXISTS', key) == 0 then return end
  local scored = {}
  for _, member in ipairs(members) do
    scored[#scored + 1], scored[#scored + 2] = text(member[2]), member[1]
  end
  if expires then
    scored[#scored + 1], scored[#scored + 2] = text(-expires), ''
  end
  for first = 1, #scored, ARGUMENTS do
    redis.call('ZADD', key, unpack(scored, first, math.min(first + ARGUMENTS - 1, #scored)))
  end
  if expires then
    redis.call('PEXPIRE', key, text(math.max(expires - now, 0) + MARGIN))
  else
    redis.call('ZREM', key, '')
    redis.call('PERSIST', key)
  end
  if #members == 0 then tidy(key) end
end

-- The journal: a stream with the ids "<position>-0". "meta" holds its totals. "replaced" and "replaced-at" hold records
-- with a replaced body, because an entry of a stream cannot be changed.

local journal, meta, replaced, replaced_at = prefix .. 'journal', prefix .. 'meta', prefix .. 'replaced', prefix .. 'replaced-at'
local cursors = prefix .. 'cursors'
local BESIDE = 32 -- bytes that a record counts for without its body
local LARGE = 65536 -- bytes of a body; "meta" holds the position of the newest body of this size, so readers take care

local STALE = {'stale'}

-- The totals: read once for a batch, and written once at its end.
local sums

local function summed()
  if not sums then
    local found = redis.call('HMGET', meta, 'last', 'records', 'bytes', 'version', 'heartbeats')
    for index = 1, 5 do found[index] = tonumber(found[index] or '0') end
    -- The version grows with each replacement of bodies, the heartbeats grow while any daemon runs.
    sums = {last = found[1], records = found[2], bytes = found[3], version = found[4], heartbeats = found[5]}
  end
  return sums
end

local function keep_sums()
  if sums and sums.changed then
    redis.call(
      'HSET', meta, 'last', sums.last, 'records', sums.records, 'bytes', sums.bytes, 'version', sums.version,
      'heartbeats', sums.heartbeats
    )
  end
end

local function last_position()
  return summed().last
end

local function add(records, bytes)
  local all = summed()
  all.records, all.bytes, all.changed = all.records + records, all.bytes + bytes, true
end

local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function field_of(entry, name)
  for index = 1, #entry, 2 do
    if entry[index] == name then return entry[index + 1] end
  end
end

local function place_of(name)
  local raw = redis.call('HGET', cursors, name)
  return raw and cmsgpack.unpack(raw)
end

local function set_place(name, place)
  redis.call('HSET', cursors, name, cmsgpack.pack(place))
end

local function oldest()
  local first = redis.call('XRANGE', journal, '-', '+', 'COUNT', 1)[1]
  local position = first and tonumber(string.match(first[1], '^%d+'))
  local at = first and tonumber(field_of(first[2], 'a'))
  local other = redis.call('ZRANGE', replaced_at, 0, 0)[1]
  if other and (not position or tonumber(other) < position) then
    position, at = tonumber(other), cmsgpack.unpack(redis.call('HGET', replaced, other))[2]
  end
  return position, at
end

local function removed_to()
  return (oldest() or last_position() + 1) - 1
end

-- Whether a record is the one that the consumer read: after a failover another record may have its position.
local function begins_with(position, head)
  local entry = redis.call('XRANGE', journal, position .. '-0', position .. '-0')[1]
  local body = entry and field_of(entry[2], 'b')
  if not body then
    local kept = redis.call('HGET', replaced, position)
    if not kept then return position <= removed_to() end
    body = cmsgpack.unpack(kept)[3]
  end
  return string.sub(body, 1, #head) == head
end

-- The state that a transaction on a daemon's memory has seen, as lists: a key, its value (nil without one) and, for a
-- renewed value, its new lifetime. These keys and the keys of claims already have the prefix: see `want`.

local function is_as_seen(now, seen)
  for index = 1, #seen do
    local each = seen[index]
    if live(each[1], now) ~= each[2] then return false end
  end
  return true
end

local function renew_seen(now, seen)
  for index = 1, #seen do
    local each = seen[index]
    if each[3] then write(each[1], each[2], each[3], now, each[2], ends[each[1]]) end
  end
end

-- The value of the claim, if it was made before.
local function taken(now, claim)
  return claim and live(claim[1], now)
end

local function add_record(kind, at, body)
  local all = summed()
  local position = all.last + 1
  redis.call('XADD', journal, string.format('%d-0', position), 't', kind, 'a', text(at), 'b', body)
  all.last, all.records, all.bytes, all.changed = position, all.records + 1, all.bytes + #body + BESIDE, true
  if #body >= LARGE then redis.call('HSET', meta, 'large', position) end
end

ops.append = function(now, records, known, claim, cursor, written, seen)
  local last = last_position()
  local value = taken(now, claim)
  if value then return {'claimed', value} end
  if seen and not is_as_seen(now, seen) then return STALE end
  if cursor then
    local place = place_of(cursor.name)
    if not place or place.fence ~= cursor.fence or last < known then return {'not holder'} end
    -- `left` differs from the holder's position if a step was done whose answer the holder never got.
    if place.left ~= cursor.before then return {'not holder'} end
    if cursor.head and not begins_with(cursor.read, cursor.head) then return {'not holder'} end
    local removed = place.position ~= place.left and place.position or 0 -- trimming has moved the cursor there
    place.left, place.position = cursor.position, math.max(cursor.position, removed)
    place.till = clock() + cursor.lease
    set_place(cursor.name, place)
  end
  if claim then set(claim[1], claim[2], now + claim[3], now) end
  if seen then renew_seen(now, seen) end
  for _, record in ipairs(records) do add_record(record[1], record[2], record[3]) end
  for _, row in ipairs(written) do rows[row[1]](now, unpack(row, 2, 5)) end
  last = last_position()
  return {'done', (cursor and #records == 0) and cursor.position or last, last, sums.version}
end

-- One record of a list, independent of the others.
local function append_one(now, kind, at, body, claim, seen)
  local value = taken(now, claim)
  if value then return {'claimed', value} end
  if not is_as_seen(now, seen) then return STALE end
  if claim then set(claim[1], claim[2], now + claim[3], now) end
  renew_seen(now, seen)
  add_record(kind, at, body)
  return true
end

-- Appends records in order. After a stale one all later ones are stale too, so that they keep their order.
ops.append_each = function(_, units)
  local results, stale = {}, false
  for index, unit in ipairs(units) do
    if stale then
      results[index] = STALE
    else
      local works, result = pcall(append_one, unpack(unit, 1, 6))
      results[index] = works and result or {'failed', message_of(result)}
      stale = result == STALE
    end
  end
  return {results, last_position(), sums.version}
end

reads.replaced = function(_, positions)
  local found = {}
  for _, position in ipairs(positions) do
    local kept = redis.call('HGET', replaced, position)
    if kept then
      local record = cmsgpack.unpack(kept)
      found[#found + 1] = {position, record[1], record[2], record[3]}
    end
  end
  return found
end

reads.extent = function()
  local all, position, at = summed(), oldest()
  return {position or all.last + 1, all.last, all.records, all.bytes, position and at or false}
end

local function outlines(after, limit)
  local found = {}
  for _, entry in ipairs(redis.call('XRANGE', journal, (after + 1) .. '-0', '+', 'COUNT', limit)) do
    local position = tonumber(string.match(entry[1], '^%d+'))
    found[#found + 1] = {position, tonumber(field_of(entry[2], 'a')), #field_of(entry[2], 'b') + BESIDE}
  end
  for _, position in ipairs(redis.call('ZRANGEBYSCORE', replaced_at, after + 1, '+inf', 'LIMIT', 0, limit)) do
    local record = cmsgpack.unpack(redis.call('HGET', replaced, position))
    found[#found + 1] = {tonumber(position), record[2], #record[3] + BESIDE}
  end
  table.sort(found, function(a, b) return a[1] < b[1] end)
  while #found > limit do found[#found] = nil end
  return found
end

reads.outlines = function(_, after, limit)
  return outlines(after, limit)
end

ops.trim = function(_, up_to, limit, most_bytes)
  local bound, count, bytes = nil, 0, 0
  for _, outline in ipairs(outlines(0, limit)) do
    if outline[1] > up_to or (bound and bytes + outline[3] > most_bytes) then break end
    bound, count, bytes = outline[1], count + 1, bytes + outline[3]
  end
  if not bound then return 0 end
  redis.call('XTRIM', journal, 'MINID', (bound + 1) .. '-0')
  for _, position in ipairs(redis.call('ZRANGEBYSCORE', replaced_at, '-inf', bound)) do
    redis.call('HDEL', replaced, position)
  end
  redis.call('ZREMRANGEBYSCORE', replaced_at, '-inf', bound)
  add(-count, -bytes)
  local names = redis.call('HKEYS', cursors)
  for _, name in ipairs(names) do
    local place = place_of(name)
    if place.position < bound then
      place.position = bound
      set_place(name, place)
    end
  end
  return count
end

local function set_aside(position, type, at, body)
  redis.call('XDEL', journal, position .. '-0')
  redis.call('HSET', replaced, position, cmsgpack.pack({type, at, body}))
  redis.call('ZADD', replaced_at, position, position)
end

-- A stream keeps the bytes of a deleted entry until all entries of its node are deleted. So the neighbours are set
-- aside unchanged, as far as a node reaches with Redis' default configuration.
local NODE_BYTES, NODE_ENTRIES = 4096, 100

local function set_neighbours_aside(position, bytes, command, bound)
  for _ = 1, NODE_ENTRIES do
    if bytes >= NODE_BYTES then return end
    local entry = redis.call(command, journal, '(' .. position .. '-0', bound, 'COUNT', 1)[1]
    if not entry then return end
    local body = field_of(entry[2], 'b')
    position, bytes = string.match(entry[1], '^%d+'), bytes + #body
    set_aside(position, field_of(entry[2], 't'), tonumber(field_of(entry[2], 'a')), body)
  end
end

ops.replace = function(_, changes)
  local done = 0
  for _, change in ipairs(changes) do
    local position, old = text(change[1]), nil
    local entry = redis.call('XRANGE', journal, position .. '-0', position .. '-0')[1]
    if entry then
      old = {field_of(entry[2], 't'), tonumber(field_of(entry[2], 'a')), field_of(entry[2], 'b')}
    else
      local kept = redis.call('HGET', replaced, position)
      old = kept and cmsgpack.unpack(kept)
    end
    if old and old[1] == change[2] and old[2] == change[3] and old[3] == change[4] then
      set_aside(position, old[1], old[2], change[5])
      if entry then
        set_neighbours_aside(position, #old[3], 'XREVRANGE', '-')
        set_neighbours_aside(position, #old[3], 'XRANGE', '+')
      end
      add(0, #change[5] - #old[3])
      done = done + 1
    end
  end
  if done > 0 then sums.version = sums.version + 1 end
  return done
end

-- Cursors: {position, left, fence, holder, till}. The holder's lease ends at `till`, by the clock of Redis. Trimming
-- moves `position`. `left` is the position that the holder was given, or has set since.

local function ensured(name, from_beginning)
  local place = place_of(name)
  local removed = removed_to()
  if not place then
    -- The first fence is the time, so that no holder of the same cursor in a former store has had the same fence.
    place = {position = from_beginning and removed or last_position(), left = 0, fence = clock(), holder = '', till = 0}
    set_place(name, place)
  elseif place.position < removed then
    place.position = removed
    set_place(name, place)
  end
  return place
end

ops.ensure_cursor = function(_, name, from_beginning)
  return ensured(name, from_beginning).position
end

ops.acquire_cursor = function(_, name, from_beginning, holder, lease)
  local place, time = ensured(name, from_beginning), clock()
  if place.holder ~= '' and place.holder ~= holder and place.till >= time then return false end
  place.fence, place.holder, place.till, place.left = place.fence + 1, holder, time + lease, place.position
  set_place(name, place)
  return {place.position, place.fence}
end

-- Returns the cursors that this holder no longer holds.
ops.keep = function(_, names, holder, lease)
  local lost = {}
  for _, name in ipairs(names) do
    local place = place_of(name)
    if place and place.holder == holder then
      place.till = clock() + lease
      set_place(name, place)
    else
      lost[#lost + 1] = name
    end
  end
  return lost
end

ops.release = function(_, names, holder)
  for _, name in ipairs(names) do
    local place = place_of(name)
    if place and place.holder == holder then
      place.holder, place.till = '', 0
      set_place(name, place)
    end
  end
  return false
end

reads.places = function()
  local found = redis.call('HGETALL', cursors)
  for index = 2, #found, 2 do
    local place = cmsgpack.unpack(found[index])
    found[index] = {place.position, place.fence}
  end
  return found
end

reads.last = function()
  return {last_position(), sums.version}
end

-- Running daemons: each counts as running until the time given, unless it reports again. The clock is that of Redis.

local daemons = prefix .. 'daemons'

ops.alive = function(_, daemon, life)
  redis.call('ZREMRANGEBYSCORE', daemons, '-inf', '(' .. clock())
  redis.call('ZADD', daemons, clock() + life, daemon)
  redis.call('PEXPIRE', daemons, life)
  local all = summed()
  all.heartbeats, all.changed = all.heartbeats + 1, true
  return {all.last, all.heartbeats}
end

ops.gone = function(_, daemon)
  redis.call('ZREM', daemons, daemon)
  return false
end

reads.daemons = function()
  return redis.call('ZRANGEBYSCORE', daemons, clock(), '+inf')
end

ops.probe = function()
  redis.call('SET', prefix .. 'probe', '', 'PX', 1000)
  return false
end

-- The identity of the store, and its losses. "store-id" is random and changes with each loss. "store-loss" holds the
-- last loss: its kind and time, the last position known before and the last one found, whether it stands (is not
-- acknowledged), and the former ids of the store.

local store_id, store_loss = prefix .. 'store-id', prefix .. 'store-loss'

local function loss()
  local found = redis.call('HMGET', store_loss, 'kind', 'at', 'known', 'found', 'stands', 'before')
  return found[1] and {
    kind = found[1], at = tonumber(found[2]), known = tonumber(found[3]), found = tonumber(found[4]),
    stands = found[5] == '1', before = found[6],
  }
end

local MOST_IDS = 3300 -- bytes: a hundred ids

local function record_loss(kind, now, known_to, before)
  local earlier = loss()
  if earlier then before = string.sub(before .. ' ' .. earlier.before, 1, MOST_IDS) end
  redis.call(
    'HSET', store_loss, 'kind', kind, 'at', text(now), 'known', text(known_to), 'found', text(last_position()),
    'stands', '1', 'before', before
  )
end

-- Moves cursors beyond the journal's end to the end, and returns them. May end all leases.
local function mend_places(drop_leases)
  local last, mended = last_position(), {}
  for _, name in ipairs(redis.call('HKEYS', cursors)) do
    local place = place_of(name)
    local beyond = place.position > last
    if beyond then
      mended[#mended + 1] = {name, place.position, last}
      place.position = last
    end
    if beyond or drop_leases then
      place.fence, place.holder, place.till = math.max(place.fence + 1, clock()), '', 0
      set_place(name, place)
    end
  end
  return mended
end

reads.store_id = function()
  return {redis.call('GET', store_id), loss()}
end

ops.identify = function(_, new)
  redis.call('SET', store_id, new, 'NX')
  return {redis.call('GET', store_id), loss(), last_position(), summed().heartbeats}
end

-- Continues in a store that has lost data, under a new id, or in one that another daemon has adopted. "before" are the
-- ids that this daemon has known, "known_to" is the newest position, "places" are its cursors and their starts.
ops.adopt = function(now, id, before, last, heartbeats, known_to, new, places)
  local found, kind = redis.call('GET', store_id), false
  if not found then
    kind = 'empty'
  elseif found ~= id then
    kind = string.find(before, found, 1, true) and 'older' or 'other'
  elseif last_position() < last or summed().heartbeats < heartbeats then
    kind = 'older'
  end
  local earlier, mended = loss(), {}
  local joins = kind == 'other' and earlier and string.find(earlier.before, id, 1, true)
  if kind and not joins then
    if kind ~= 'other' then redis.call('SET', store_id, new) end
    record_loss(kind, now, known_to, before)
    mended = mend_places(kind ~= 'other')
  end
  if kind then
    local all = loss()
    for _, place in ipairs(places) do
      local name, from_beginning = place[1], place[2]
      if not place_of(name) then
        local new_place = ensured(name, from_beginning)
        if not from_beginning then
          -- Do not skip records that other daemons have appended since the loss.
          new_place.position = math.max(math.min(all.found, new_place.position), removed_to())
          set_place(name, new_place)
        end
      end
    end
  end
  return {redis.call('GET', store_id), loss(), kind, last_position(), summed().heartbeats, sums.version, mended}
end

ops.report_loss = function(now, what, before)
  record_loss(what, now, last_position(), before)
  return loss()
end

ops.clear_loss = function()
  local stood = loss()
  if not stood or not stood.stands then return false end
  redis.call('HSET', store_loss, 'stands', '0')
  return true
end

-- The batch

local asked = cmsgpack.unpack(ARGV[2])
local batch = prefix .. 'batch:' .. ARGV[1]
-- Read all needed values with one command, because each command costs more than the work on its values.
local keys, there = {batch, store_id}, {}

local function want(key)
  local whole = prefix .. key
  if not there[whole] then
    there[whole] = true
    keys[#keys + 1] = whole
  end
  return whole
end

local function want_of(claim, seen)
  if claim then claim[1] = want(claim[1]) end
  if seen then
    for index = 1, #seen do seen[index][1] = want(seen[index][1]) end
  end
end

for _, operation in ipairs(asked) do
  local name = operation[1]
  if name == 'append' then
    want_of(operation[5], operation[8])
  elseif name == 'append_each' then
    for _, unit in ipairs(operation[3]) do want_of(unit[5], unit[6]) end
  elseif name == 'get' or name == 'claimed' or name == 'renew' or name == 'entry' or name == 'put' or name == 'swap' then
    want(operation[3])
  end
end
for index, raw in ipairs(redis.call('MGET', unpack(keys))) do known[keys[index]] = raw end
local known_id, known_last, known_heartbeats = string.match(ARGV[3] or '', '^(%S+) (%d+) (%d+)$')
if known_id then
  local all = summed()
  if known[store_id] ~= known_id or all.last < tonumber(known_last) or all.heartbeats < tonumber(known_heartbeats) then
    redis.call('DEL', batch) -- deletes nothing, but a lagging replica replies with an error: it takes no writes
    return redis.error_reply('STORELOST the store has lost data')
  end
end
local earlier = known[batch] and cmsgpack.unpack(known[batch])
local answers, written, writes = {}, {}, false
for index, operation in ipairs(asked) do
  local name = operation[1]
  if ops[name] and earlier then
    answers[index] = earlier[index]
  else
    local works, result = pcall(ops[name] or reads[name], unpack(operation, 2, 9))
    if not works then result = message_of(result) end
    answers[index] = {works, result}
    written[index] = ops[name] and answers[index] or false
    writes = writes or ops[name]
  end
end
keep_sums()
if writes then
  redis.call('SET', batch, cmsgpack.pack(written), 'PX', REMEMBERED)
end
return cmsgpack.pack(answers)
