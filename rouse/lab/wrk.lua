-- SPDX-License-Identifier: MIT
-- The figures of a run of wrk(1), as JSON in its last line of output.
local LINE = '{"requests": %d, "seconds": %.6f, "bytes": %d, "connect": %d, "read": %d, "write": %d, '
    .. '"status": %d, "timeout": %d, "latency_p50_us": %.1f, "latency_p99_us": %.1f}\n'

done = function(summary, latency)
    local errors = summary.errors
    io.write(LINE:format(summary.requests, summary.duration / 1e6, summary.bytes, errors.connect,
        errors.read, errors.write, errors.status, errors.timeout, latency:percentile(50),
        latency:percentile(99)))
end
