-- Decides a demand, all or nothing, in one step and one round trip.
--
-- KEYS: one a charge. ARGV: times, how ("owe" to charge whatever it comes to, "back" to give back, "put" to do no more than replace),
-- time ("" for this server's, else seconds and nanoseconds), slack in milliseconds, when what is given back was charged ("" when that is
-- not known); then fifteen a charge: rule, shape, increment, capacity, window, phase, what must be spare (each a pair), limit,
-- cost, spare units; then none, or three a charge: the rule and the numbers that must be there, and the numbers that take their place.
-- Every time is a pair of seconds and nanoseconds, for numbers here are doubles and nanoseconds since 1970 do not fit one: no
-- number below is ever above 2^53.
--
-- A state is kept with the rule that it was written under: a string `rule|numbers`, or for a log a list of the rule and the times.
-- When a state is not as expected (of the charge's rule, or as must be there) nothing is done.
--
-- Answers: whether it was done, times admitted, seconds, nanoseconds, and for each key the rule ("" for the charge's own) and the
-- numbers that were there. What they mean for the caller is worked out by the same code as in any other store; here is
-- only what must happen where the count is.

local G = 1000000000
local SPAN = { 1152921504, 606846976 } -- 2^60 nanoseconds

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
if ARGV[3] == "" then
    local t = redis.call("TIME")
    now = { tonumber(t[1]), tonumber(t[2]) * 1000 }
else
    now = { num(3), num(4) }
end
local slack = num(5)
local charged = now
if ARGV[6] ~= "" and less(pair(6), now) then charged = pair(6) end

-- How long a state is kept after it has lost its meaning, for clocks that step back.
local function expire(ends)
    local left = sub(ends, now)
    if left[1] < 0 then left = { 0, 0 } end
    return left[1] * 1000 + math.ceil(left[2] / 1000000) + slack
end

local function words(text)
    local found = {}
    for word in string.gmatch(text, "%S+") do found[#found + 1] = tonumber(word) end
    return found
end

-- The rule and the numbers of a key, as texts; a log's times also one by one.
local function read_text(key)
    local text = redis.pcall("GET", key)
    if type(text) == "table" then return nil end
    if not text then return "", "" end
    local bar = string.find(text, "|", 1, true) or 0
    return string.sub(text, 1, bar - 1), string.sub(text, bar + 1)
end
local function read_list(key)
    local list = redis.pcall("LRANGE", key, 0, -1)
    if list.err then return nil end
    return list[1] or "", table.concat(list, " ", 2), list
end
local function read(key, shape)
    if shape == "log" then
        local rule, text, list = read_list(key)
        if rule then return rule, text, list end
        return read_text(key)
    end
    local rule, text = read_text(key)
    if rule then return rule, text end
    return read_list(key)
end

local function put(key, c, text, ends)
    redis.call("SET", key, c.rule .. "|" .. text, "PX", expire(ends))
end

-- How many charges fit into so many units.
local function fit_units(c, left)
    if left < c.spare_units then return 0 end
    if c.cost == 0 then return c.most end
    return math.floor((left - c.spare_units) / c.cost)
end

-- Each shape: how many charges fit, and what a number of charges writes.

local function cell(key, c)
    local held = words(c.text)
    local at = { held[1] or 0, held[2] or 0 }
    local function anchor_at(time)
        if zero(c.window) then return time end
        local _, into = divide(sub(time, c.phase), c.window)
        return add(sub(time, into), c.window)
    end
    local anchor = anchor_at(now)
    local base = later(at, anchor)
    c.write = function(n)
        local to = at
        if n > 0 then
            to = add(base, times(c.increment, n))
            -- What is owed goes no further than a window's end, or the longest span that there is.
            local most = add(anchor, zero(c.window) and SPAN or c.capacity)
            if less(most, to) then to = later(most, at) end
        end
        put(key, c, string.format("%.0f %.0f", to[1], to[2]), to)
    end
    c.back = function()
        if not less(anchor, at) then return end
        local owed = c.increment
        if less(c.capacity, owed) then owed = c.capacity end
        if zero(c.window) then
            -- What has leaked away since is not given back.
            owed = sub(owed, sub(now, charged))
        elseif less(anchor_at(charged), anchor) then
            return
        end
        if owed[1] < 0 then return end
        local to = later(sub(at, owed), anchor)
        put(key, c, string.format("%.0f %.0f", to[1], to[2]), to)
    end
    local room = sub(sub(add(anchor, c.capacity), base), c.spare)
    if c.looks then return c.most end
    if room[1] < 0 then return 0 end
    if c.cost == 0 then return c.most end
    return (divide(room, c.increment))
end

-- A counter: limit - current - previous * left / window, rounded up.
local function counter(key, c)
    local held = words(c.text)
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
    c.write = function(n)
        local ends = add(start, add(c.window, c.window))
        put(key, c, string.format("%.0f %.0f %.0f %.0f", ends[1], ends[2], previous, current + n * c.cost), ends)
    end
    c.back = function()
        if not held[1] then return end
        if not less(charged, start) then
            current = math.max(0, current - c.cost)
        elseif not less(add(charged, c.window), start) then
            previous = math.max(0, previous - c.cost)
        end
        c.write(0)
    end
    if c.looks then return c.most end
    local left = sub(c.window, sub(later(now, start), start))
    local whole, rest = divide(times(left, previous), c.window)
    if not zero(rest) then whole = whole + 1 end
    return fit_units(c, c.limit - current - whole)
end

-- A log: a list of the rule and the times of units, oldest first.
local function log(key, c)
    local held, at, spent = c.list, now, 1
    if #held > 1 then
        at = later(now, words(held[#held]))
        for index = 2, #held do
            if less(at, add(words(held[index]), c.window)) then break end
            spent = index
        end
    end
    c.text = table.concat(held, " ", spent + 1)
    c.write = function(n)
        local text, newest = string.format("%.0f %.0f", at[1], at[2]), at
        if n == 0 and #held > 1 then newest = words(held[#held]) end
        -- What is owed beyond the limit takes the place of the oldest.
        local more = math.min(n * c.cost, c.limit)
        local gone = math.min(#held, spent + math.max(0, #held - spent + more - c.limit))
        if c.swapped then
            -- In pieces: a call takes some thousands of arguments.
            redis.call("DEL", key)
            for from = 1, #held, 1000 do redis.call("RPUSH", key, unpack(held, from, math.min(from + 999, #held))) end
        end
        if gone > 1 then redis.call("LTRIM", key, gone, -1) end
        if gone > 1 or (#held < 2 and not c.swapped) then redis.call("LPUSH", key, c.rule) end
        for _ = 1, more do redis.call("RPUSH", key, text) end
        redis.call("PEXPIRE", key, expire(add(newest, c.window)))
    end
    if c.looks then return c.most end
    return fit_units(c, c.limit - (#held - spent))
end

-- Goes on from other numbers than those that are there. They are written with the next charge, or for their own sake.
local function swap(c, text)
    c.text, c.list, c.swapped = text, { c.rule }, true
    if c.shape ~= "log" then return end
    for time in string.gmatch(text, "%S+ %S+") do c.list[#c.list + 1] = time end
end

local charges, done = {}, true
for index, key in ipairs(KEYS) do
    local at = 8 + (index - 1) * 15
    local c = {
        rule = ARGV[at], shape = ARGV[at + 1], increment = pair(at + 2), capacity = pair(at + 4), window = pair(at + 6),
        phase = pair(at + 8), spare = pair(at + 10), limit = num(at + 12), cost = num(at + 13), spare_units = num(at + 14),
        most = num(1),
    }
    c.looks = c.cost == 0 and c.spare_units == 0
    local other
    other, c.text, c.list = read(key, c.shape)
    if not c.text then return redis.error_reply("WRONGTYPE " .. key .. " is somebody else's") end
    c.other = (other == c.rule or c.text == "") and "" or other
    if not c.list or #c.list == 0 then c.list = { c.rule } end
    local expected = 8 + #KEYS * 15 + (index - 1) * 3
    if ARGV[expected] then
        done = done and ARGV[expected] == c.other and ARGV[expected + 1] == c.text
        c.put = ARGV[expected + 2]
    else
        done = done and c.other == ""
    end
    charges[index] = c
end
local admitted = done and num(1) or 0
if done then
    local shapes = { cell = cell, counter = counter, log = log }
    for index, key in ipairs(KEYS) do
        local c = charges[index]
        if c.put and (c.other ~= "" or c.put ~= c.text) then
            c.other = ""
            swap(c, c.put)
        end
        local fit = shapes[c.shape](key, c)
        if ARGV[2] == "" then admitted = math.min(admitted, fit) end
    end
end
local answer = {
    done and "1" or "0", string.format("%.0f", admitted), string.format("%.0f", now[1]), string.format("%.0f", now[2]),
}
for index, c in ipairs(charges) do
    answer[3 + 2 * index] = c.other
    answer[4 + 2 * index] = c.text
    if done and ARGV[2] == "put" then
        if c.swapped and c.text == "" then
            redis.call("DEL", KEYS[index])
        elseif c.swapped then
            c.write(0)
        end
    elseif done and ARGV[2] == "back" then
        c.back()
    elseif admitted > 0 and c.cost > 0 then
        c.write(admitted)
    end
end
return answer
