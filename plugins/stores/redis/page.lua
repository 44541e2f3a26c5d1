-- Reads a page of the journal, in one step. page.py sends it.
--
-- ARGV: the position before the page, its most records, its most bytes, and the records of one look at the size. Returns
-- the position of the newest large record, the number of the piece with the last record of the page (0 if unknown), and
-- then each record as a list of position, type, time and body.

local after, limit, bytes, step = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local found = {tonumber(redis.call('HGET', meta, 'large') or '0'), 0}
local piece = piece_at(after + 1)
while piece and #found < limit + 2 and bytes > 0 do
  local count = math.min(step, limit + 2 - #found)
  local some = records_after(piece, after, count)
  for _, record in ipairs(some) do
    found[#found + 1] = record
    bytes = bytes - #record[4]
    after = record[1]
    found[2] = tonumber(piece.number or 0)
  end
  if #some < count then
    if piece.number and redis.call('EXISTS', piece.key) == 0 then
      return redis.error_reply('STORELOST the journal has lost records')
    end
    piece = piece_after(piece)
  end
end
return found
