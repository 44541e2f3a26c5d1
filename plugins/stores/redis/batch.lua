-- Runs the operations of one batch, in order and atomically. link.py sends the batches.
--
-- KEYS[1] is the prefix of all keys. ARGV[1] is the id of the batch. ARGV[2] is the list of operations (MessagePack),
-- each a list of its name and arguments. Returns (as MessagePack) a list with an answer for each operation: {true, result}
-- or {false, message}.
--
-- ARGV[3] is the sender's knowledge of the store: its id ('' if unknown), the newest position of the journal, and the
-- count of heartbeats. A store with another id, or with lower numbers, has lost data. Then the script does nothing and
-- returns the error STORELOST. A store of a newer format is refused with the error STOREFORMAT. ARGV[4] is the most bytes of a piece of the journal. ARGV[5] is '1' for the first batch of a
-- connection: a store that has moved may have left keys behind.
--
-- A batch is sent again if its answer was lost. Its writes are not repeated: their answers are kept for that. Keeping them
-- is a write too, so WAIT waits for replicas even if the answer is only that somebody else has stored the event.

local REMEMBERED = 600000 -- milliseconds
-- The daemons' clocks decide what has expired. Redis removes expired keys this many milliseconds later.
local MARGIN = 600000

-- By name: operations that may write, those of them that can be repeated, so that their answers are not kept, operations
-- that only read (the sender waits for no replica then), and the writes of transactions.
local ops, repeatable, reads, writes = {}, {}, {}, {}

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

-- How many bytes entries with fields need, by the day on which they end ('never' without an end). Redis removes expired
-- entries, so nobody can subtract their bytes: the total leaves out the days that are over.
local field_bytes = prefix .. 'field-bytes'
local DAY = 86400000

local function count_bytes(expires, bytes)
  local day = expires and text(math.floor((expires + MARGIN) / DAY)) or 'never'
  local total = redis.call('HINCRBY', field_bytes, day, bytes)
  if total <= 0 then redis.call('HDEL', field_bytes, day) end
  if total ~= bytes then return end
  -- The day is new, so others may be over.
  local today = math.floor(redis.call('TIME')[1] * 1000 / DAY)
  for _, other in ipairs(redis.call('HKEYS', field_bytes)) do
    if tonumber(other) and tonumber(other) < today - 1 then redis.call('HDEL', field_bytes, other) end
  end
end

-- The set of names has two more members, which are no names because they are not UTF-8. The score of SIZE is the size of
-- all names and values in bytes, negative so that it comes first. The score of END is the expiry, negative too, or -inf.
-- Entries of older programs have no END, and are not counted.
local SIZE, END = '\255', '\254'
local BESIDE_ENTRY, BESIDE_FIELD = 300, 130 -- bytes that Redis needs beside the names and values

-- The expiry of an entry with fields (nil without one), and whether its bytes are counted.
local function end_of(names)
  local score = redis.pcall('ZSCORE', names, END)
  if type(score) ~= 'string' then return nil, false end
  return score ~= '-inf' and -tonumber(score) or nil, true
end

local function weight_of(count, size)
  return count > 0 and size + count * BESIDE_FIELD + BESIDE_ENTRY or 0
end

local function delete(key)
  local names = names_of(key)
  local expires, counted = end_of(names)
  if counted then
    local size = -(redis.call('ZSCORE', names, SIZE) or '-1') - 1
    count_bytes(expires, -weight_of(redis.call('ZCARD', names) - 2, size))
  end
  redis.call('DEL', key, names)
  keep(key)
end

-- Writing the same value never shortens its lifetime.
local function write(key, value, ttl, now, old, expires)
  if old == value and (not expires or (ttl and now + ttl <= expires)) then return end
  set(key, value, ttl and now + ttl, now)
end

local function only(key, kind)
  if redis.call('TYPE', key).ok ~= kind then delete(key) end
end

-- A field is stored as "<at>|<value>".

-- Keeps the size and the end of an entry whose fields have changed. `before` is what was counted for it.
local function keep_size(key, names, size, before, expires, now)
  local weight = weight_of(redis.call('HLEN', key), size)
  if before.counted and before.expires == expires then
    if weight ~= before.weight then count_bytes(expires, weight - before.weight) end
  else
    if before.counted then count_bytes(before.expires, -before.weight) end
    if weight > 0 then count_bytes(expires, weight) end
  end
  if weight == 0 then
    redis.call('DEL', names)
    return
  end
  redis.call('ZADD', names, text(-size - 1), SIZE)
  if before.counted and before.expires == expires then return end
  redis.call('ZADD', names, expires and text(-expires) or '-inf', END)
  for _, each in ipairs({key, names}) do
    if expires then
      redis.call('PEXPIRE', each, text(math.max(expires - now, 0) + MARGIN))
    else
      redis.call('PERSIST', each)
    end
  end
end

-- The size of all fields in bytes. Adds the names of fields that an older program has written.
local function size_of(key, names)
  local score, extra = redis.call('ZSCORE', names, SIZE), redis.call('ZSCORE', names, END) and 2 or 1
  if score and redis.call('ZCARD', names) == redis.call('HLEN', key) + extra then return -score - 1 end
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
  local part, first = 1, redis.call('ZCARD', names) - before -- after SIZE and END, which may not be there yet
  while is_over(0, 0) do
    part = math.min(math.max(part, most and before - dropped - most or 1), PART)
    local some = redis.call('ZRANGE', names, first, first + part - 1)
    local more, bytes = drop_fields(key, names, some, is_over)
    dropped, size, part = dropped + more, size - bytes, 2 * part
  end
  return dropped, size
end

-- Returns the size of an entry in bytes, and what is counted for it.
local function measured(key, names)
  local size = size_of(key, names)
  local expires, counted = end_of(names)
  return size, {expires = expires, counted = counted, weight = weight_of(redis.call('HLEN', key), size)}
end

writes.merge = function(now, key, fields, most, most_bytes, ttl)
  key = prefix .. key
  only(key, 'hash')
  local names = names_of(key)
  local known_end = end_of(names)
  if known_end and known_end < now then delete(key) end
  local size, before = measured(key, names)
  local expires = ttl and now + ttl
  if before.weight > 0 then
    expires = expires and before.expires and math.max(expires, before.expires) or nil
  end
  size = size + set_fields(key, names, fields, true)
  local _, left = drop_oldest(key, names, size, most, most_bytes)
  keep_size(key, names, left, before, expires, now)
end

local function fields_of(now, key)
  key = prefix .. key
  local found = redis.pcall('HGETALL', key)
  if found.err or #found == 0 then return {} end
  local expires = end_of(names_of(key))
  if expires and expires < now then return {} end
  return found, expires
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

writes.push = function(now, key, member, at, keep, first, since, ttl)
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
end

writes.pull = function(_, key, members)
  for _, member in ipairs(members) do redis.pcall('ZREM', prefix .. key, member) end
  tidy(prefix .. key)
end

local function window_of(now, key, since, till)
  key = prefix .. key
  local expires = life(key)
  if expires and expires < now then return {} end
  local from = expires and '(' .. text(-expires) or '-inf'
  local found = redis.pcall('ZRANGEBYSCORE', key, since or from, till or '+inf', 'WITHSCORES')
  return found.err and {} or found
end

-- Whole entries for the daemons' caches: the raw value, or all fields, or all members of a set, whose key has the mark.
-- In front of fields that end is their expiry.

local SET = '#'

local function key_of_set(key)
  return string.sub(key, 1, 1) == SET and string.sub(key, 2)
end

local function entry_of(key)
  local set = key_of_set(key)
  if not set then
    local value = read(prefix .. key)
    if value then return value end
    local found, expires = fields_of(0, key)
    if expires then table.insert(found, 1, expires) end
    return found
  end
  local found = redis.pcall('ZRANGE', prefix .. set, 0, -1, 'WITHSCORES')
  return found.err and {} or found
end

reads.load = function(_, keys)
  local found = {}
  for index, key in ipairs(keys) do found[index] = entry_of(key) end
  return found
end

-- The same for `ingestd store copy`, which does not know the type: it stands before fields and members. The expiry of
-- fields stands after them.
reads.entries = function(_, keys)
  local found = {}
  for index, key in ipairs(keys) do
    key = prefix .. key
    local kind = redis.call('TYPE', key).ok
    if kind == 'hash' then
      found[index] = {kind, redis.call('HGETALL', key), end_of(names_of(key)) or false}
    elseif kind == 'zset' then
      found[index] = {kind, redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')}
    else
      found[index] = kind == 'string' and redis.call('GET', key)
    end
  end
  return found
end

-- The other writes of transactions. A consumer's step writes whole values and the changes of fields and sets.

local ARGUMENTS = 1000 -- the most of one command, an even number: Lua's stack is limited

writes.put = function(now, key, value, ttl)
  local old, expires = live(prefix .. key, now)
  write(prefix .. key, value, ttl, now, old, expires)
end

writes.delete = function(_, key)
  delete(prefix .. key)
end

writes.value = function(now, key, value, expires)
  set(prefix .. key, value, expires, now)
end

writes.fields = function(now, key, fields, gone, expires)
  key = prefix .. key
  only(key, 'hash')
  local names = names_of(key)
  local size, before = measured(key, names)
  for first = 1, #gone, PART do
    local some = {unpack(gone, first, math.min(first + PART - 1, #gone))}
    local _, bytes = drop_fields(key, names, some, function() return true end)
    size = size - bytes
  end
  size = size + set_fields(key, names, fields)
  keep_size(key, names, size, before, expires, now)
end

-- What entries with fields need, in bytes.
reads.field_bytes = function(now)
  local today, total, found = math.floor(now / DAY), 0, redis.call('HGETALL', field_bytes)
  for index = 1, #found, 2 do
    local day = tonumber(found[index])
    if not day or day >= today then total = total + tonumber(found[index + 1]) end
  end
  return total
end

-- Gives entries an end, each a list of key and expiry, unless they have one.
ops.set_ends = function(now, ends)
  for _, each in ipairs(ends) do
    local key, expires = prefix .. each[1], each[2]
    local kind = redis.call('TYPE', key).ok
    if kind == 'string' then
      local value, old = live(key, now)
      if value and not old then set(key, value, expires, now) end
    elseif kind == 'hash' then
      local names = names_of(key)
      local size, before = measured(key, names)
      if not before.expires then keep_size(key, names, size, before, expires, now) end
    end
  end
  return false
end

writes.members = function(now, key, members, gone, expires)
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

-- The journal: see pieces.lua. "meta" holds its totals.

local cursors = prefix .. 'cursors'
local BESIDE = 32 -- bytes that a record counts for without its body
local LARGE = 65536 -- bytes of a body; "meta" holds the position of the newest body of this size, so readers take care

local STALE = {'stale'}

-- The totals: read once for a batch, and written once at its end.
local sums

local function summed()
  if not sums then
    local found = redis.call(
      'HMGET', meta, 'last', 'records', 'bytes', 'version', 'heartbeats', 'piece', 'piece-base', 'placement', 'noting'
    )
    for index = 1, 9 do found[index] = tonumber(found[index] or '0') end
    -- The version grows with each replacement of bodies, the heartbeats grow while any daemon runs. `piece` is the number
    -- of the newest piece. `bytes` has grown by what was added to that piece, from `base` on.
    sums = {
      last = found[1], records = found[2], bytes = found[3], version = found[4], heartbeats = found[5],
      piece = found[6], base = found[7], placement = found[8], noting = found[9],
    }
  end
  return sums
end

local function keep_sums()
  if sums and sums.changed then
    redis.call(
      'HSET', meta, 'last', sums.last, 'records', sums.records, 'bytes', sums.bytes, 'version', sums.version,
      'heartbeats', sums.heartbeats
    )
    if sums.base_changed then redis.call('HSET', meta, 'piece', sums.piece, 'piece-base', sums.base) end
  end
end

local function last_position()
  return summed().last
end

-- Counts what trimming and replacing have changed.
local function add(records, bytes)
  local all = summed()
  all.records, all.changed, all.base_changed = all.records + records, true, true
  if all.records == 0 then bytes = -all.bytes end -- after a loss, `all.bytes` may have been an estimate
  all.bytes, all.base = all.bytes + bytes, all.base + bytes
end

local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function row_of(name)
  local raw = redis.call('HGET', cursors, name)
  return raw and cmsgpack.unpack(raw)
end

local function set_row(name, row)
  redis.call('HSET', cursors, name, cmsgpack.pack(row))
end

local function oldest()
  local piece = piece_at(0)
  while piece do
    local first = records_after(piece, 0, 1)[1]
    if first then return first[1], first[3] end
    piece = piece_after(piece)
  end
end

local function removed_to()
  return (oldest() or last_position() + 1) - 1
end

-- Whether a record is the one that the consumer read: after a failover another record may have its position.
local function begins_with(position, head)
  local piece = piece_at(position)
  local record = piece and records_after(piece, position - 1, 1)[1]
  if not record or record[1] ~= position then return position <= removed_to() end
  return string.sub(record[4], 1, #head) == head
end

-- Transactions. `checks` are the values that one has read, each a list of a key, its value (nil without one) and, if it
-- renews the value, the new lifetime. `contents` are the fields and windows that it has read, each a list of the kind,
-- the content, the key and the bounds. `changes` are its writes. The keys of checks and claims already have the prefix:
-- see `want`.

local content_of = {
  fields = function(now, key) return (fields_of(now, key)) end,
  window = window_of,
}

-- Compares lists of pairs. The order of fields can differ.
local function is_same(found, expected)
  if #found ~= #expected then return false end
  local second = {}
  for index = 1, #found, 2 do second[found[index]] = found[index + 1] end
  for index = 1, #expected, 2 do
    local is, should = second[expected[index]], expected[index + 1]
    if type(should) == 'number' then is = tonumber(is) end
    if is ~= should then return false end
  end
  return true
end

local function is_unchanged(now, checks, contents)
  for index = 1, #checks do
    local each = checks[index]
    if live(each[1], now) ~= each[2] then return false end
  end
  for _, each in ipairs(contents or {}) do
    if not is_same(content_of[each[1]](now, unpack(each, 3, 5)), each[2]) then return false end
  end
  return true
end

-- While a tenant is moved to another partition, `ingestd partitions place` wants to know which entries change: see
-- `note_changes`. The keys of checks and claims have the prefix, those of changes have not.
local changed = prefix .. 'changed'

-- Nobody may ever ask, so beyond this number nothing is noted any more.
local MOST_NOTED = 100000

local function note(key)
  redis.call('ZADD', changed, 0, key)
  if redis.call('ZCARD', changed) > MOST_NOTED then
    sums.noting = 0
    redis.call('HDEL', meta, 'noting')
    redis.call('UNLINK', changed)
  end
end

local function apply(now, checks, changes)
  local is_noted = summed().noting > 0
  for index = 1, #checks do
    local each = checks[index]
    if each[3] then
      write(each[1], each[2], each[3], now, each[2], ends[each[1]])
      if is_noted then note(string.sub(each[1], #prefix + 1)) end
    end
  end
  for _, each in ipairs(changes or {}) do
    writes[each[1]](now, unpack(each, 2, 8))
    if is_noted then note(each[2]) end
  end
end

-- Whether a transaction belongs to a placement of tenants before the one that the partition was closed to. Its tenant may
-- have left, or come here with other keys.
local function is_outdated(placement)
  return (placement or 0) < summed().placement
end

local PIECE = tonumber(ARGV[4]) -- bytes

-- Puts a piece into the index that has just got its first record. After a write of this script Redis refuses no other one
-- for lack of memory, so the index never names a piece without a stream.
local function begin_piece(all, position)
  if redis.call('TYPE', journal).ok == 'stream' then
    local single, first = piece_at(0), piece_of(0)
    for _, each in ipairs({'key', 'replaced', 'replaced_at'}) do
      if redis.call('EXISTS', single[each]) == 1 then redis.call('RENAME', single[each], first[each]) end
    end
    redis.call('ZADD', journal, 0, 0)
  end
  all.piece, all.base, all.base_changed = all.piece + 1, all.bytes, true
  redis.call('ZADD', journal, position, all.piece)
end

local function add_record(kind, at, body)
  local all = summed()
  local position, size = all.last + 1, #body + BESIDE
  local is_first = all.piece == 0 or (all.bytes > all.base and all.bytes - all.base + size > PIECE)
  local key = journal .. ':' .. text(is_first and all.piece + 1 or all.piece)
  redis.call('XADD', key, string.format('%d-0', position), 't', kind, 'a', text(at), 'b', body)
  if is_first then begin_piece(all, position) end
  all.last, all.records, all.bytes, all.changed = position, all.records + 1, all.bytes + size, true
  if #body >= LARGE then redis.call('HSET', meta, 'large', position) end
end

-- The commit of a consumer's step or a command.
ops.commit = function(now, records, known, cursor, checks, changes, contents, placement)
  if is_outdated(placement) then return {cursor and 'not holder' or 'outdated'} end
  if not is_unchanged(now, checks, contents) then return STALE end
  local last = last_position()
  if cursor then
    local row = row_of(cursor.name)
    if not row or row.fence ~= cursor.fence or last < known then return {'not holder'} end
    -- `left` differs from the holder's position if a step was done whose answer the holder never got.
    if row.left ~= cursor.before then return {'not holder'} end
    if cursor.head and not begins_with(cursor.read, cursor.head) then return {'not holder'} end
    local removed = row.position ~= row.left and row.position or 0 -- trimming has moved the cursor there
    row.left, row.position = cursor.position, math.max(cursor.position, removed)
    row.till = clock() + cursor.lease
    set_row(cursor.name, row)
  end
  apply(now, checks, changes)
  for _, record in ipairs(records) do add_record(record[1], record[2], record[3]) end
  last = last_position()
  return {'done', (cursor and #records == 0) and cursor.position or last, last, sums.version}
end

-- The commit of one event. The record comes last: an error before it leaves the event refused, and sent again.
local function append(now, record, claim, checks, changes, contents)
  local value = claim and live(claim[1], now)
  if value then return {'duplicate', value} end
  if not is_unchanged(now, checks, contents) then return STALE end
  apply(now, checks, changes)
  if claim then
    set(claim[1], claim[2], now + claim[3], now)
    if summed().noting > 0 then note(string.sub(claim[1], #prefix + 1)) end
  end
  if record then add_record(record[1], record[2], record[3]) end
  return true
end

-- Commits events in order, each independent of the others. After a stale one all later ones are stale too, so that they
-- keep their order.
ops.append = function(_, events, placement)
  local results, stale = {}, is_outdated(placement) -- the daemon runs them again, and learns the placement meanwhile
  for index, event in ipairs(events) do
    if stale then
      results[index] = STALE
    else
      local works, result = pcall(append, unpack(event, 1, 6))
      results[index] = works and result or {'failed', message_of(result)}
      stale = result == STALE
    end
  end
  return {results, last_position(), sums.version}
end

ops.fence = function(_, placement)
  if is_outdated(placement) then return false end
  sums.placement = placement
  redis.call('HSET', meta, 'placement', placement)
  return true
end

-- Notes the keys of entries that change from now on, under a name. 0 ends that.
ops.note_changes = function(_, name)
  summed().noting = name
  redis.call('HSET', meta, 'noting', name)
  redis.call('UNLINK', changed)
  return false
end

-- Keys that were noted under a name, which are dropped. Returns false if there is another name.
ops.take_changes = function(_, name, limit)
  if summed().noting ~= name then return false end
  local found = redis.call('ZRANGE', changed, 0, limit - 1)
  if #found > 0 then redis.call('ZREM', changed, unpack(found)) end
  return found
end

reads.extent = function()
  local all, position, at = summed(), oldest()
  return {position or all.last + 1, all.last, all.records, all.bytes, position and at or false}
end

-- Cursors: {position, left, fence, holder, till}. The holder's lease ends at `till`, by the clock of Redis. Trimming
-- moves `position`. `left` is the position that the holder was given, or has set since.

local function ensured(name, from_beginning)
  local row = row_of(name)
  local removed = removed_to()
  if not row then
    -- The first fence is the time, so that no holder of the same cursor in a former store has had the same fence.
    row = {position = from_beginning and removed or last_position(), left = 0, fence = clock(), holder = '', till = 0}
    set_row(name, row)
  elseif row.position < removed then
    row.position = removed
    set_row(name, row)
  end
  return row
end

ops.ensure_cursor = function(_, name, from_beginning)
  return ensured(name, from_beginning).position
end

ops.acquire_cursor = function(_, name, from_beginning, holder, lease)
  local row, time = ensured(name, from_beginning), clock()
  if row.holder ~= '' and row.holder ~= holder and row.till >= time then
    if row.till > time + lease then -- the clock of the server was ahead, or it was another server
      row.till = time + lease
      set_row(name, row)
    end
    return false
  end
  row.fence, row.holder, row.till, row.left = row.fence + 1, holder, time + lease, row.position
  set_row(name, row)
  return {row.position, row.fence}
end

-- Returns the cursors that this holder no longer holds.
local function renew(names, holder, lease)
  local lost = {}
  for _, name in ipairs(names) do
    local row = row_of(name)
    if row and row.holder == holder then
      row.till = clock() + lease
      set_row(name, row)
    else
      lost[#lost + 1] = name
    end
  end
  return lost
end

ops.release = function(_, names, holder)
  for _, name in ipairs(names) do
    local row = row_of(name)
    if row and row.holder == holder then
      row.holder, row.till = '', 0
      set_row(name, row)
    end
  end
  return false
end

reads.cursors = function()
  local found = redis.call('HGETALL', cursors)
  for index = 2, #found, 2 do
    local row = cmsgpack.unpack(found[index])
    found[index] = {row.position, row.fence}
  end
  return found
end

-- Lets an empty journal continue after a position, which earlier records in another store had.
ops.continue_after = function(_, position)
  local all = summed()
  if all.records > 0 then error('the journal has records') end
  all.last, all.changed = position, true
  return false
end

reads.last = function()
  return {last_position(), sums.version, sums.piece}
end

-- Operations that few batches have are defined when they are needed: a batch pays for each function that it defines.

local store_id, store_format = prefix .. 'store-id', prefix .. 'store-format'

-- The format of the store, and the first version of ingestd that knows it. A change that this script would not understand
-- needs a higher number. Stores of earlier versions have none. It is a key, because a look at one more field of "meta"
-- costs a batch a tenth more.
local FORMAT = '1 0.1.0'

-- Every write and every beat raises the number, or puts it back. So no data are in a store with a lower number: not if a
-- command writes into an empty store, and not after a failover or a move that has lost the key.
local function raise_format()
  if known[store_format] ~= FORMAT then redis.call('SET', store_format, FORMAT) end
end

local is_whole, renew_mark

local function define_upkeep()
--include upkeep.lua
end

-- Running daemons: each counts as running until the time given, unless it reports again. The clock is that of Redis.

local daemons = prefix .. 'daemons'
local DAEMONS_LIFE = 60000 -- milliseconds after the last report of any daemon: no report lives so long

-- Ends the reports up to this time and the leases of daemons that do not run. `running` are the names of those that do.
local function end_others(running, up_to)
  local is_running, silent = {}, {}
  for _, name in ipairs(running) do is_running[name] = true end
  for _, report in ipairs(redis.call('ZRANGEBYSCORE', daemons, '-inf', up_to)) do
    local name = string.match(report, '^%S+')
    if not is_running[name] then
      redis.call('ZREM', daemons, report)
      silent[name] = true
    end
  end
  if not next(silent) then return end
  -- A daemon that has changed its report may have two.
  for _, report in ipairs(redis.call('ZRANGE', daemons, 0, -1)) do silent[string.match(report, '^%S+')] = nil end
  for _, name in ipairs(redis.call('HKEYS', cursors)) do
    local row = row_of(name)
    if silent[row.holder] then
      row.fence, row.holder, row.till = row.fence + 1, '', 0
      set_row(name, row)
    end
  end
end

-- What a running daemon does regularly: it reports that it runs, and renews the leases of its cursors. `former` is its
-- report before a change, or ''. Beats may be rare, so their reports live long. `running` are the daemons that beat on
-- this node, if the sender knows them: others end here if their reports live no longer than `silence` milliseconds.
repeatable.beat = function(_, report, former, life, names, holder, lease, running, silence)
  local time = clock()
  if running then
    running[#running + 1] = holder
    end_others(running, time + silence)
  end
  redis.call('ZREMRANGEBYSCORE', daemons, '-inf', '(' .. time)
  if former ~= '' then redis.call('ZREM', daemons, former) end
  for _, late in ipairs(redis.call('ZRANGEBYSCORE', daemons, '(' .. time + DAEMONS_LIFE, '+inf')) do
    redis.call('ZADD', daemons, time + life, late) -- as for the leases: the clock of the server was ahead
  end
  local is_new = redis.call('ZADD', daemons, time + life, report) == 1
  redis.call('PEXPIRE', daemons, DAEMONS_LIFE)
  local all = summed()
  all.heartbeats, all.changed = all.heartbeats + 1, true
  renew_mark(all.heartbeats)
  raise_format()
  return {
    all.last, all.version, all.piece, all.heartbeats, time, renew(names, holder, lease),
    redis.call('ZRANGE', daemons, 0, -1), tonumber(redis.call('HGET', meta, 'changes') or '0'),
    is_new,
  }
end

ops.gone = function(_, daemon)
  redis.call('ZREM', daemons, daemon)
  return false
end

reads.daemons = function()
  return redis.call('ZRANGEBYSCORE', daemons, clock(), '+inf')
end

repeatable.probe = function()
  redis.call('SET', prefix .. 'probe', '', 'PX', 1000)
  return false
end

-- As `last`, with a write, so that WAIT waits until replicas have all records up to that position.
repeatable.replicated_last = function()
  repeatable.probe()
  return reads.last()
end

-- The batch

local asked = cmsgpack.unpack(ARGV[2])
local batch = prefix .. 'batch:' .. ARGV[1]
-- Read all needed values with one command, because each command costs more than the work on its values.
local keys, there = {batch, store_id, store_format}, {}

local function want(key)
  local whole = prefix .. key
  if not there[whole] then
    there[whole] = true
    keys[#keys + 1] = whole
  end
  return whole
end

local function want_all(claim, checks, changes)
  if claim then claim[1] = want(claim[1]) end
  for index = 1, #checks do checks[index][1] = want(checks[index][1]) end
  for _, each in ipairs(changes or {}) do
    if each[1] == 'put' then want(each[2]) end
  end
end

local is_beat = false

for _, operation in ipairs(asked) do
  local name = operation[1]
  if name == 'beat' then
    is_beat = true
  elseif not (ops[name] or repeatable[name] or reads[name]) then
    define_upkeep()
  elseif name == 'append' then
    for _, event in ipairs(operation[3]) do want_all(event[3], event[4], event[5]) end
  elseif name == 'commit' then
    want_all(nil, operation[6], operation[7])
  elseif name == 'load' then
    for _, key in ipairs(operation[3]) do
      if not key_of_set(key) then want(key) end
    end
  end
end
for first = 1, #keys, ARGUMENTS do
  local some = {unpack(keys, first, math.min(first + ARGUMENTS - 1, #keys))}
  for index, raw in ipairs(redis.call('MGET', unpack(some))) do known[some[index]] = raw end
end
local is_first = ARGV[5] == '1'
if (is_first or is_beat) and not is_whole then define_upkeep() end
local format = known[store_format]
if format and format ~= FORMAT then
  local number, since = string.match(format, '^(%d+) (%S+)')
  local newest = string.match(FORMAT, '^%d+')
  if not number then
    return redis.error_reply('STOREFORMAT the key ' .. store_format .. ' has no number of a format')
  end
  if tonumber(number) > tonumber(newest) then
    return redis.error_reply(string.format(
      'STOREFORMAT the store %s* has format %s, and this ingestd knows %s: install ingestd %s or later',
      prefix, number, newest, since
    ))
  end
end
local known_id, known_last, known_heartbeats = string.match(ARGV[3] or '', '^(%S+) (%d+) (%d+)$')
if known_id then
  local all = summed()
  local is_lost = known[store_id] ~= known_id or all.last < tonumber(known_last)
    or all.heartbeats < tonumber(known_heartbeats)
  if is_lost or (is_first or is_beat) and not is_whole(known_id, not is_first) then
    redis.call('DEL', batch) -- deletes nothing, but a lagging replica replies with an error: it takes no writes
    return redis.error_reply('STORELOST the store has lost data')
  end
end
local earlier = known[batch] and cmsgpack.unpack(known[batch])
if earlier then
  -- In Valkey 9.1, WAIT waits for writes of its own connection only. A repeated batch comes on a
  -- new connection, so without this write its answer would not wait for any replica.
  redis.call('PEXPIRE', batch, REMEMBERED)
end
local answers, written, has_written, has_changed, waits = {}, {}, false, false, false
for index, operation in ipairs(asked) do
  local name = operation[1]
  if ops[name] and earlier then
    answers[index] = earlier[index]
  else
    local works, result = pcall(ops[name] or repeatable[name] or reads[name], unpack(operation, 2, 10))
    if not works then result = message_of(result) end
    answers[index] = {works, result}
    written[index] = ops[name] and answers[index] or false
    has_written = has_written or ops[name]
    has_changed = has_changed or ops[name] and works and result and name ~= 'append'
    waits = waits or name == 'adopt' and not result
  end
end
keep_sums()
-- Beats tell of changes, so that daemons need not look for them. An event tells by its record. An operation that answers
-- false has changed nothing of what others read. In a part of a store this key must not come back into being.
if has_changed then redis.call('HINCRBY', meta, 'changes', 1) end
if has_written then
  if not waits then raise_format() end -- in a part of a store, this key too must not come back into being
  redis.call('SET', batch, cmsgpack.pack(written), 'PX', REMEMBERED)
end
return cmsgpack.pack(answers)
