-- Upkeep of the journal and of the store's identity: the body of a function in batch.lua, which has the names that are not
-- defined here.

-- The journal: outlines, trimming, and replaced bodies.

-- The position, time and size of records.
local function outlines(piece, after, limit)
  local found = records_after(piece, after, limit)
  for index, record in ipairs(found) do found[index] = {record[1], record[3], #record[4] + BESIDE} end
  return found
end

reads.outlines = function(_, after, limit)
  local found, piece = {}, piece_at(after + 1)
  while piece and #found < limit do
    for _, outline in ipairs(outlines(piece, after, limit - #found)) do found[#found + 1] = outline end
    piece = piece_after(piece)
  end
  return found
end

local function remove_to(piece, bound)
  redis.call('XTRIM', piece.key, 'MINID', (bound + 1) .. '-0')
  for _, position in ipairs(redis.call('ZRANGEBYSCORE', piece.replaced_at, '-inf', bound)) do
    redis.call('HDEL', piece.replaced, position)
  end
  redis.call('ZREMRANGEBYSCORE', piece.replaced_at, '-inf', bound)
end

local function drop_piece(piece)
  redis.call('UNLINK', piece.key, piece.replaced, piece.replaced_at)
  redis.call('ZREM', journal, piece.number)
end

local function count_of(piece)
  return redis.call('XLEN', piece.key) + redis.call('ZCARD', piece.replaced_at)
end

ops.trim = function(_, up_to, limit, most_bytes)
  local count, bytes, bound, piece = 0, 0, nil, piece_at(0)
  while piece and count < limit do
    local last
    for _, outline in ipairs(outlines(piece, 0, limit - count)) do
      -- The first record goes, however large it is.
      if outline[1] > up_to or (bound and bytes + outline[3] > most_bytes) then break end
      bound, last, count, bytes = outline[1], outline[1], count + 1, bytes + outline[3]
    end
    if last then remove_to(piece, last) end
    if count_of(piece) > 0 or not piece.number or tonumber(piece.number) == summed().piece then break end
    drop_piece(piece)
    piece = piece_after(piece)
  end
  if not bound then return 0 end
  add(-count, -bytes)
  local names = redis.call('HKEYS', cursors)
  for _, name in ipairs(names) do
    local row = row_of(name)
    if row.position < bound then
      row.position = bound
      set_row(name, row)
    end
  end
  return count
end

local function set_aside(piece, position, type, at, body)
  redis.call('XDEL', piece.key, position .. '-0')
  redis.call('HSET', piece.replaced, position, cmsgpack.pack({type, at, body}))
  redis.call('ZADD', piece.replaced_at, position, position)
end

-- A stream keeps the bytes of a deleted entry until all entries of its node are deleted. So the neighbours are set
-- aside unchanged, as far as a node reaches with Redis' default configuration.
local NODE_BYTES, NODE_ENTRIES = 4096, 100

local function set_neighbours_aside(piece, position, bytes, command, bound)
  for _ = 1, NODE_ENTRIES do
    if bytes >= NODE_BYTES then return end
    local entry = redis.call(command, piece.key, '(' .. position .. '-0', bound, 'COUNT', 1)[1]
    if not entry then return end
    local fields = entry[2] -- in the order of `records_after`
    position, bytes = string.match(entry[1], '^%d+'), bytes + #fields[6]
    set_aside(piece, position, fields[2], tonumber(fields[4]), fields[6])
  end
end

ops.replace = function(_, changes)
  local done = 0
  for _, change in ipairs(changes) do
    local position, piece = text(change[1]), piece_at(change[1])
    local old = piece and records_after(piece, change[1] - 1, 1)[1]
    if old and old[1] == change[1] and old[2] == change[2] and old[3] == change[3] and old[4] == change[4] then
      local was_in_stream = redis.call('ZSCORE', piece.replaced_at, position) == false
      set_aside(piece, position, old[2], old[3], change[5])
      if was_in_stream then
        set_neighbours_aside(piece, position, #old[4], 'XREVRANGE', '-')
        set_neighbours_aside(piece, position, #old[4], 'XRANGE', '+')
      end
      add(0, #change[5] - #old[4])
      done = done + 1
    end
  end
  if done > 0 then sums.version = sums.version + 1 end
  return done
end

-- The identity of the store, and its losses. "store-id" is random and changes with each loss. "store-loss" holds the
-- last loss: its kind and time, the last position known before and the last one found, whether it stands (is not
-- acknowledged), and the former ids of the store.

local store_loss = prefix .. 'store-loss'

-- Marks: keys with the id of the store. A cluster moves the keys of a slot one after the other, so a move that is given up
-- leaves a part of them behind. That part has some of the marks. Newer servers move keys in the order of a hash, others in
-- the order of their age. So mark n is written anew with every 2^n-th heartbeat, and the marks have all ages.

local MARKS = 64
local SOME_MARKS, SOME_PIECES = 8, 50 -- of one heartbeat

local function some_marks(from, to)
  local marks = {}
  for number = from, to do marks[#marks + 1] = prefix .. 'mark:' .. text(number) end
  return marks
end

local function set_marks(id)
  local marks, set = some_marks(1, MARKS), {}
  for number, mark in ipairs(marks) do set[2 * number - 1], set[2 * number] = mark, id end
  redis.call('DEL', unpack(marks))
  redis.call('MSET', unpack(set))
  redis.call('HSET', meta, 'marks', MARKS)
end

renew_mark = function(heartbeats)
  local id, number = redis.call('GET', store_id), 1
  while heartbeats % 2 == 0 and number < MARKS do number, heartbeats = number + 1, heartbeats / 2 end
  local mark = some_marks(number, number)[1]
  redis.call('DEL', mark)
  if id then redis.call('SET', mark, id) end
end

-- How many of the pieces with these numbers have a key whose name ends so.
local function count_keys(numbers, ending)
  local keys = {}
  for index, number in ipairs(numbers) do keys[index] = journal .. ':' .. number .. ending end
  return redis.call('EXISTS', unpack(keys))
end

-- Whether the index and the pieces agree: all of them, or some in turn.
local function has_pieces(some)
  local all = summed()
  local count = all.piece > 0 and redis.call('ZCARD', journal) or 0
  if count == 0 then return all.piece == 0 end
  local first = some and all.heartbeats % math.ceil(count / SOME_PIECES) * SOME_PIECES or 0
  for from = first, some and first or count - 1, SOME_PIECES do
    local numbers = redis.call('ZRANGE', journal, from, from + SOME_PIECES - 1)
    if count_keys(numbers, '') < #numbers then return false end
    if count_keys(numbers, ':replaced') ~= count_keys(numbers, ':replaced-at') then return false end
  end
  return true
end

-- Whether the store has all marks and pieces, or some of them in turn. A store of an earlier version has no marks, and
-- `meta` does not count any.
is_whole = function(id, some)
  local wanted = redis.call('HEXISTS', meta, 'marks') == 1 and (id or '') or false
  local first = some and summed().heartbeats % (MARKS / SOME_MARKS) * SOME_MARKS or 0
  for _, mark in ipairs(redis.call('MGET', unpack(some_marks(first + 1, some and first + SOME_MARKS or MARKS)))) do
    if mark ~= wanted then return false end
  end
  return has_pieces(some)
end

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
local function mend_cursors(drop_leases)
  local last, mended = last_position(), {}
  for _, name in ipairs(redis.call('HKEYS', cursors)) do
    local row = row_of(name)
    local beyond = row.position > last
    if beyond then
      mended[#mended + 1] = {name, row.position, last}
      row.position = last
    end
    if beyond or drop_leases then
      row.fence, row.holder, row.till = math.max(row.fence + 1, clock()), '', 0
      set_row(name, row)
    end
  end
  return mended
end

-- Continues with the pieces that are left. Their bytes are an estimate.
local MOST_MISSING = 1000 -- numbers in a row without a piece, until the search for pieces ends

local function mend_pieces()
  -- An index that is lost is made again.
  local function find_pieces(from, by)
    local missing, number = 0, from
    while number >= 0 and missing < MOST_MISSING do
      local piece = piece_of(text(number))
      local first = redis.call('EXISTS', piece.key) == 1 and records_after(piece, 0, 1)[1]
      if first then redis.call('ZADD', journal, first[1], piece.number) end
      missing, number = first and 0 or missing + 1, number + by
    end
  end

  local all = summed()
  if redis.call('TYPE', journal).ok == 'stream' then return end
  if redis.call('EXISTS', journal) == 0 then
    find_pieces(all.piece, -1)
    find_pieces(all.piece + 1, 1)
  end
  all.records, all.bytes, all.changed = 0, 0, true
  for _, number in ipairs(redis.call('ZRANGE', journal, 0, -1)) do
    local piece = piece_of(number)
    if count_keys({number}, ':replaced') ~= count_keys({number}, ':replaced-at') then
      redis.call('UNLINK', piece.replaced, piece.replaced_at)
    end
    local count = count_of(piece)
    if count == 0 then
      drop_piece(piece)
    else
      all.records = all.records + count
      for _, key in ipairs({piece.key, piece.replaced}) do
        all.bytes = all.bytes + (redis.call('MEMORY', 'USAGE', key) or 0)
      end
      local newest = redis.call('XREVRANGE', piece.key, '+', '-', 'COUNT', 1)[1]
      local newest_aside = redis.call('ZREVRANGE', piece.replaced_at, 0, 0)[1]
      all.last = math.max(all.last, newest and tonumber(string.match(newest[1], '^%d+')) or 0, tonumber(newest_aside or 0))
    end
    all.piece = math.max(all.piece, tonumber(number))
  end
  if redis.call('EXISTS', journal) == 0 then all.piece = 0 end
  all.base, all.base_changed = all.bytes - PIECE, true -- the next record begins a piece
end

reads.store_id = function()
  return {redis.call('GET', store_id), loss()}
end

reads.is_whole = function()
  return is_whole(redis.call('GET', store_id))
end

ops.identify = function(now, new)
  local found = redis.call('GET', store_id)
  local mended = false -- the cursors, if a part of the store was lost
  if not is_whole(found) then
    mend_pieces()
    record_loss('partial', now, last_position(), found or '')
    mended = mend_cursors(true)
  end
  if mended or not found then redis.call('SET', store_id, new) end
  if mended or redis.call('HEXISTS', meta, 'marks') == 0 then set_marks(redis.call('GET', store_id)) end
  return {redis.call('GET', store_id), loss(), last_position(), summed().heartbeats, mended, clock()}
end

-- Continues in a store that has lost data, under a new id, or in one that another daemon has adopted. "before" are the
-- ids that this daemon has known, "known_to" is the newest position, "needed" are its cursors and their starts. Returns
-- false if the daemon waits for the part that is missing.
ops.adopt = function(now, id, before, last, heartbeats, known_to, new, needed, waits)
  local found, kind = redis.call('GET', store_id), false
  local has_all = is_whole(found)
  if not found then
    kind = has_all and 'empty' or 'partial'
  elseif found ~= id then
    kind = string.find(before, found, 1, true) and 'older' or 'other'
  elseif not has_all then
    kind = 'partial'
  elseif last_position() < last or summed().heartbeats < heartbeats then
    kind = 'older'
  end
  if kind == 'partial' and waits then return false end
  local earlier, mended = loss(), {}
  local joins = kind == 'other' and earlier and string.find(earlier.before, id, 1, true)
  if kind and not joins then
    if kind ~= 'other' then
      if not has_all then mend_pieces() end
      redis.call('SET', store_id, new)
      set_marks(new)
    end
    record_loss(kind, now, known_to, before)
    mended = mend_cursors(kind ~= 'other')
  end
  if kind then
    local all = loss()
    for _, each in ipairs(needed) do
      local name, from_beginning = each[1], each[2]
      if not row_of(name) then
        local row = ensured(name, from_beginning)
        if not from_beginning then
          -- Do not skip records that other daemons have appended since the loss.
          row.position = math.max(math.min(all.found, row.position), removed_to())
          set_row(name, row)
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
