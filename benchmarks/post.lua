-- Posts the bodies of a file (one a line) in turn, each with the same key. Arguments: FILE KEY

local requests, last = {}, 0

function init(arguments)
   local headers = {
      ["Authorization"] = "Bearer " .. arguments[2],
      ["Content-Type"] = "application/json",
   }
   for body in io.lines(arguments[1]) do
      requests[#requests + 1] = wrk.format("POST", nil, headers, body)
   end
end

function request()
   last = last % #requests + 1
   return requests[last]
end

-- One JSON object for run.py; wrk counts 400 and above as errors of status, and latency in µs.
function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "failed": %d}\n',
      summary.requests, summary.duration / 1e6,
      latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
      errors.status + errors.connect + errors.read + errors.write + errors.timeout
   ))
end
