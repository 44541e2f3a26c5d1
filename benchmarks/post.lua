-- Posts the bodies of a file (one a line) in turn, with the keys in turn.
-- Arguments: FILE KEY,KEY,... plain|browser PAUSE VISITORS VISIT AT_ONCE SENT. If VISITORS is not 0, events come from that many
-- visitors, in visits of VISIT events, AT_ONCE visits at a time. SENT is the number of events of earlier runs: this run
-- continues after them.

local requests, last, pause = {}, 0, 0
local tails = {} -- second parts of requests, which are divided at the visitor's number
local visitors, visit, at_once, sent = 0, 1, 1, 0
local SPREAD = 15485863 -- a prime: its multiples reach every visitor before any visitor returns

local BROWSER = { -- with Host, Authorization, Content-Type and Content-Length the 18 headers of Firefox or Chrome
   ["User-Agent"] = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/143.0.0.0 Safari/537.36",
   ["Accept"] = "*/*",
   ["Accept-Encoding"] = "gzip, deflate, br, zstd",
   ["Accept-Language"] = "de-DE,de;q=0.9,en-US;q=0.8,en;q=0.7",
   ["Connection"] = "keep-alive",
   ["Origin"] = "https://shop.example",
   ["Referer"] = "https://shop.example/c/shirts?page=3",
   ["Sec-Fetch-Dest"] = "empty",
   ["Sec-Fetch-Mode"] = "cors",
   ["Sec-Fetch-Site"] = "same-site",
   ["sec-ch-ua"] = '"Chromium";v="143", "Not A(Brand";v="24", "Google Chrome";v="143"',
   ["sec-ch-ua-mobile"] = "?0",
   ["sec-ch-ua-platform"] = '"Linux"',
   ["Priority"] = "u=4, i",
}

function init(arguments)
   local headers = arguments[3] == "browser" and BROWSER or {}
   local keys = {}
   for key in arguments[2]:gmatch("[^,]+") do
      keys[#keys + 1] = key
   end
   headers["Content-Type"] = "application/json"
   for body in io.lines(arguments[1]) do
      headers["Authorization"] = "Bearer " .. keys[#requests % #keys + 1]
      requests[#requests + 1] = wrk.format("POST", nil, headers, body)
   end
   visitors, visit = tonumber(arguments[5]), tonumber(arguments[6])
   at_once, sent = tonumber(arguments[7]), tonumber(arguments[8])
   if visitors > 0 then
      for number, whole in ipairs(requests) do
         local head, tail = whole:match('^(.-"anonymousId": "visitor%-)%d%d%d%d%d%d%d%d(.*)$')
         requests[number], tails[number] = head, tail
      end
   end
   pause = tonumber(arguments[4])
   if pause > 0 then
      delay = function() return math.random(0, 2 * pause) end
   end
end

function request()
   last = last % #requests + 1
   if visitors == 0 then
      return requests[last]
   end
   local slot = sent % at_once
   local turn = math.floor((math.floor(sent / at_once) + slot) / visit) -- so the visits do not all end at once
   sent = sent + 1
   return requests[last] .. string.format("%08d", (turn * at_once + slot) % visitors * SPREAD % visitors) .. tails[last]
end

-- One JSON object for load.py. wrk counts answers of 400 and above as status errors, and latency in µs.
function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "failed": %d}\n',
      summary.requests, summary.duration / 1e6,
      latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
      errors.status + errors.connect + errors.read + errors.write + errors.timeout
   ))
end
