-- The journal: a chain of streams, its pieces. A piece ends before it would have more than PIECE bytes of records, so that
-- no key is large: a cluster moves a slot key by key, and its nodes do nothing else while one key moves.
--
-- Piece 17 is the stream "journal:17" with the ids "<position>-0". "journal:17:replaced" and "journal:17:replaced-at" hold
-- its records with a replaced body, because an entry of a stream cannot be changed. The sorted set "journal" is the index:
-- the numbers of the pieces, by the position with which each began. A piece stays until all its records are removed.
--
-- Before there were pieces, "journal" was one stream, which is a piece without a number. It becomes piece 0 with the next
-- record.
--
-- This file stands in front of batch.lua and page.lua.

local prefix = KEYS[1]
local journal, meta = prefix .. 'journal', prefix .. 'meta'

local function piece_of(number, first)
  local key = journal .. ':' .. number
  return {
    number = number, first = tonumber(first), key = key, replaced = key .. ':replaced', replaced_at = key .. ':replaced-at',
  }
end

-- The piece with a position, or else the first piece after it; nil if there is none.
local function piece_at(position)
  local found = redis.pcall('ZREVRANGEBYSCORE', journal, position, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if found.err then return {key = journal, replaced = prefix .. 'replaced', replaced_at = prefix .. 'replaced-at'} end
  if #found == 0 then found = redis.call('ZRANGE', journal, 0, 0, 'WITHSCORES') end
  if #found > 0 then return piece_of(found[1], found[2]) end
end

local function piece_after(piece)
  if not piece.number then return nil end
  local found = redis.call('ZRANGEBYSCORE', journal, '(' .. piece.first, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if #found > 0 then return piece_of(found[1], found[2]) end
end

-- The records of a piece after a position, in order and at most `count`: each a list of position, type, time and body.
local function records_after(piece, after, count)
  local found = {}
  for index, entry in ipairs(redis.call('XRANGE', piece.key, (after + 1) .. '-0', '+', 'COUNT', count)) do
    local fields = entry[2]
    found[index] = {tonumber(string.match(entry[1], '^%d+')), fields[2], tonumber(fields[4]), fields[6]}
  end
  local to = #found == count and found[count][1] or '+inf'
  local others = redis.call('ZRANGEBYSCORE', piece.replaced_at, after + 1, to, 'LIMIT', 0, count)
  if #others == 0 then return found end
  for _, position in ipairs(others) do
    local record = cmsgpack.unpack(redis.call('HGET', piece.replaced, position))
    found[#found + 1] = {tonumber(position), record[1], record[2], record[3]}
  end
  table.sort(found, function(a, b) return a[1] < b[1] end)
  while #found > count do found[#found] = nil end
  return found
end
