-- Decides a demand, all or nothing, in one step and one round trip.
--
-- KEYS: one a charge. ARGV: times, time ("" for this server's, else seconds and nanoseconds), slack in milliseconds, and then
-- ten a charge: shape, increment, capacity, window, phase, limit, cost. Every time is a pair of seconds and nanoseconds, for
-- numbers here are doubles and nanoseconds since 1970 do not fit one: no number below is ever above 2^53.
--
-- Answers: times admitted, seconds, nanoseconds, and for each key its state before, as text. What that state means for the
-- caller is worked out from it by the same code as in any other store; here is only what must happen where the count is.

local G = 1000000000

local function num(at) return tonumber(ARGV[at]) end
local function pair(at) return { num(at), num(at + 1) } end
local function less(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end
local function later(a, b) if less(a, b) then return b end return a end
local function norm(s, n)
    local carry = math.floor(n / G)
    return { s + carry, n - carry * G }
end
local function add(a, b) return norm(a[1] + b[1], a[2] + b[2]) end
local function sub(a, b) return norm(a[1] - b[1], a[2] - b[2]) end
local function zero(a) return a[1] == 0 and a[2] == 0 end

-- A pair times a whole number below 2^53 whose product is below 2^53 seconds.
local function times(a, k)
    local high = math.floor(k / 1000000)
    local low = k - high * 1000000
    local part = high * a[2] -- Times a million nanoseconds: a thousand of them are a second.
    local seconds = math.floor(part / 1000)
    local result = norm(a[1] * k + seconds, (part - seconds * 1000) * 1000000)
    return add(result, norm(0, low * a[2]))
end

-- The whole quotient of two pairs and the rest. The first guess is off by a few at most.
local function divide(a, b)
    local q = math.floor((a[1] * G + a[2]) / (b[1] * G + b[2]))
    local rest = sub(a, times(b, q))
    while rest[1] < 0 do
        q = q - 1
        rest = add(rest, b)
    end
    while not less(rest, b) do
        q = q + 1
        rest = sub(rest, b)
    end
    return q, rest
end

local now
if ARGV[2] == "" then
    local t = redis.call("TIME")
    now = { tonumber(t[1]), tonumber(t[2]) * 1000 }
else
    now = { num(2), num(3) }
end
local slack = num(4)

-- How long a state is kept after it has lost its meaning, for clocks that step back.
local function expire(ends)
    local left = sub(ends, now)
    if left[1] < 0 then left = { 0, 0 } end
    return left[1] * 1000 + math.ceil(left[2] / 1000000) + slack
end

local function words(text)
    local found = {}
    for word in string.gmatch(text or "", "%S+") do found[#found + 1] = tonumber(word) end
    return found
end

-- How many charges of a cell fit; the rest is what a charge writes.
local function cell(key, c)
    local text = redis.call("GET", key)
    local held = words(text)
    local at = { held[1] or 0, held[2] or 0 }
    local anchor = now
    if not zero(c.window) then
        local _, into = divide(sub(now, c.phase), c.window)
        anchor = add(sub(now, into), c.window)
    end
    local base = later(at, anchor)
    local room = sub(add(anchor, c.capacity), base)
    c.before = text or ""
    if c.cost == 0 then return c.most end
    if room[1] < 0 then return 0 end
    local fit = divide(room, c.increment)
    c.write = function(n)
        local to = add(base, times(c.increment, n))
        redis.call("SET", key, string.format("%.0f %.0f", to[1], to[2]), "PX", expire(to))
    end
    return fit
end

-- How many charges of a counter fit: limit - current - previous * left / window, rounded up.
local function counter(key, c)
    local text = redis.call("GET", key)
    local held = words(text)
    local _, into = divide(sub(now, c.phase), c.window)
    local start = sub(now, into)
    local previous, current = 0, 0
    if held[1] then
        local was = sub({ held[1], held[2] }, add(c.window, c.window))
        if not less(was, start) then
            start, previous, current = was, held[3], held[4]
        elseif not less(add(was, c.window), start) then
            previous, current = held[4], 0
        end
    end
    c.before = text or ""
    if c.cost == 0 then return c.most end
    local left = sub(c.window, sub(later(now, start), start))
    local whole, rest = divide(times(left, previous), c.window)
    if not zero(rest) then whole = whole + 1 end
    local room = c.limit - current - whole
    if room < 0 then return 0 end
    c.write = function(n)
        local ends = add(start, add(c.window, c.window))
        local state = string.format("%.0f %.0f %.0f %.0f", ends[1], ends[2], previous, current + n * c.cost)
        redis.call("SET", key, state, "PX", expire(ends))
    end
    return math.floor(room / c.cost)
end

-- How many charges of a log fit. A list of the times of units, oldest first.
local function log(key, c)
    local held = redis.call("LRANGE", key, 0, -1)
    local at, spent = now, 0
    if #held > 0 then
        local newest = words(held[#held])
        at = later(now, newest)
        for index = 1, #held do
            if less(at, add(words(held[index]), c.window)) then break end
            spent = index
        end
    end
    c.before = table.concat(held, " ", spent + 1)
    if c.cost == 0 then return c.most end
    local room = c.limit - (#held - spent)
    if room < 0 then return 0 end
    c.write = function(n)
        if spent > 0 then redis.call("LTRIM", key, spent, -1) end
        local text = string.format("%.0f %.0f", at[1], at[2])
        for _ = 1, n * c.cost do redis.call("RPUSH", key, text) end
        redis.call("PEXPIRE", key, expire(add(at, c.window)))
    end
    return math.floor(room / c.cost)
end

local shapes = { cell = cell, counter = counter, log = log }
local admitted = num(1)
local charges = {}
for index, key in ipairs(KEYS) do
    local at = 5 + (index - 1) * 11
    local c = {
        increment = pair(at + 1), capacity = pair(at + 3), window = pair(at + 5), phase = pair(at + 7),
        limit = num(at + 9), cost = num(at + 10), most = admitted,
    }
    admitted = math.min(admitted, shapes[ARGV[at]](key, c))
    charges[index] = c
end
local answer = { string.format("%.0f", admitted), string.format("%.0f", now[1]), string.format("%.0f", now[2]) }
for index, c in ipairs(charges) do
    answer[index + 3] = c.before
    if admitted > 0 and c.write then c.write(admitted) end
end
return answer
