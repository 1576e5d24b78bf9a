"""What `jobs.py` has Redis do in one step each."""

from gateway.index.cluster import Script

# Ends a job where nothing of it is left. Expects `prefix` and `id` as locals.
_END = """
local function over(state)
  local job = prefix .. 'j:' .. id
  redis.call('HSET', job, 'state', state)
  redis.call('ZREM', prefix .. 'jobs', id)
  redis.call('ZADD', prefix .. 'ended', redis.call('TIME')[1], id)
  redis.call('EXPIRE', job, ARGV[2])
  for _, node in ipairs(redis.call('SMEMBERS', prefix .. 'n:' .. id)) do
    redis.call('DEL', prefix .. 'q:' .. id .. ':' .. node, prefix .. 'c:' .. id .. ':' .. node)
  end
  for _, kind in ipairs({'n:', 'o:', 'x:', 'w:'}) do redis.call('DEL', prefix .. kind .. id) end
end
local function over_if_through()
  local found = redis.call('HMGET', prefix .. 'j:' .. id, 'open', 'listed')
  if tonumber(found[1]) <= 0 and found[2] == '1' then over('done') end
end
local function push(object, node, item)
  redis.call('SADD', prefix .. 'n:' .. id, node)
  redis.call('RPUSH', prefix .. 'q:' .. id .. ':' .. node, item)
  redis.call('HINCRBY', prefix .. 'o:' .. id, object, 1)
  redis.call('HINCRBY', prefix .. 'j:' .. id, 'open', 1)
end
local function settle(object, failed)
  local objects, job = prefix .. 'o:' .. id, prefix .. 'j:' .. id
  if failed then redis.call('HSET', objects, 'f' .. object, 1) end
  redis.call('HINCRBY', job, 'open', -1)
  if redis.call('HINCRBY', objects, object, -1) > 0 then return end
  redis.call('HDEL', objects, object)
  local bad = redis.call('HDEL', objects, 'f' .. object) == 1
  redis.call('HINCRBY', job, bad and 'objects_failed' or 'objects_done', 1)
end
"""

# All scripts: KEYS[1] is the set of running jobs; ARGV[1] how the keys begin, ARGV[2] how long an
# ended job is kept, ARGV[3] the job.
_START = "local prefix, id = ARGV[1], ARGV[3]\n" + _END

CREATE = Script("""
local prefix, id = ARGV[1], ARGV[3]
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[6]) then return 0 end
local number = redis.call('INCR', prefix .. 'number')
redis.call('ZADD', KEYS[1], tonumber(ARGV[5]) * 1000000000 - number, id)
redis.call('HSET', prefix .. 'j:' .. id, 'spec', ARGV[4], 'priority', ARGV[5], 'number', number,
  'state', 'running', 'position', '', 'listed', '0', 'next', '0', 'open', '0')
return 1
""")

PRIORITY = Script("""
local prefix, id = ARGV[1], ARGV[3]
local job = prefix .. 'j:' .. id
if redis.call('HGET', job, 'state') ~= 'running' then return 0 end
local number = redis.call('HGET', job, 'number')
redis.call('HSET', job, 'priority', ARGV[4])
redis.call('ZADD', KEYS[1], tonumber(ARGV[4]) * 1000000000 - tonumber(number), id)
return 1
""")

CANCEL = Script(
    _START
    + """
if redis.call('HGET', prefix .. 'j:' .. id, 'state') ~= 'running' then return 0 end
over('cancelled')
return 1
"""
)

BEGIN = Script("""
local prefix, node = ARGV[1], ARGV[3]
for _, id in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, -1)) do
  local claimed = prefix .. 'c:' .. id .. ':' .. node
  for _, item in ipairs(redis.call('HVALS', claimed)) do
    redis.call('LPUSH', prefix .. 'q:' .. id .. ':' .. node, item)
  end
  redis.call('DEL', claimed)
end
return 1
""")

CLAIM = Script("""
local prefix, node, left = ARGV[1], ARGV[3], tonumber(ARGV[4])
local found = {}
for _, id in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, -1)) do
  while left > 0 do
    local item = redis.call('LPOP', prefix .. 'q:' .. id .. ':' .. node)
    if not item then break end
    redis.call('HSET', prefix .. 'c:' .. id .. ':' .. node, string.match(item, '^%d+'), item)
    found[#found + 1] = id
    found[#found + 1] = item
    left = left - 1
  end
  if left <= 0 then break end
end
return found
""")

FINISH = Script(
    _START
    + """
local claimed = prefix .. 'c:' .. id .. ':' .. ARGV[4]
if redis.call('HDEL', claimed, ARGV[5]) == 0 then return 0 end
local job = prefix .. 'j:' .. id
redis.call('HINCRBY', job, 'bytes_done', ARGV[7])
redis.call('HINCRBY', job, 'bytes_failed', ARGV[8])
redis.call('HINCRBY', job, 'rack:' .. ARGV[9], ARGV[7])
settle(ARGV[6], tonumber(ARGV[8]) > 0 or ARGV[10] == '1')
over_if_through()
return 1
"""
)

# ARGV[3] who walks, ARGV[4] for how long, ARGV[5] how many items may be open, ARGV[6..] who lives.
WALK = Script("""
local prefix, me = ARGV[1], ARGV[3]
local alive = {}
for at = 6, #ARGV do alive[ARGV[at]] = true end
for _, id in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, -1)) do
  local walker = prefix .. 'w:' .. id
  local other = redis.call('GET', walker)
  if not other or other == me or not alive[other] then
    local orphans = prefix .. 'x:' .. id
    for _, node in ipairs(redis.call('SMEMBERS', prefix .. 'n:' .. id)) do
      if not alive[node] then
        local waiting = prefix .. 'q:' .. id .. ':' .. node
        local claimed = prefix .. 'c:' .. id .. ':' .. node
        for _, item in ipairs(redis.call('HVALS', claimed)) do
          redis.call('RPUSH', orphans, item)
        end
        for _, item in ipairs(redis.call('LRANGE', waiting, 0, -1)) do
          redis.call('RPUSH', orphans, item)
        end
        redis.call('DEL', waiting, claimed)
        redis.call('SREM', prefix .. 'n:' .. id, node)
      end
    end
    local found = redis.call('HMGET', prefix .. 'j:' .. id,
      'spec', 'position', 'next', 'listed', 'open')
    local left = redis.call('LRANGE', orphans, 0, 99)
    if #left > 0 or (found[4] == '0' and tonumber(found[5]) < tonumber(ARGV[5])) then
      redis.call('SET', walker, me, 'EX', ARGV[4])
      return {id, found[1], found[2], found[3], found[4], left}
    end
  end
end
return false
""")

# ARGV[4] the position before, [5] after, [6] whether that is the end, [7] the next number before,
# [8] after, [9] objects found, [10] their bytes, [11] failed; then object, node and item of each.
WALKED = Script(
    _START
    + """
local job = prefix .. 'j:' .. id
local found = redis.call('HMGET', job, 'position', 'next', 'state', 'listed')
if found[1] ~= ARGV[4] or found[2] ~= ARGV[7] or found[3] ~= 'running' or found[4] ~= '0' then
  return 0
end
redis.call('HSET', job, 'position', ARGV[5], 'listed', ARGV[6], 'next', ARGV[8])
redis.call('HINCRBY', job, 'objects_found', ARGV[9])
redis.call('HINCRBY', job, 'bytes_found', ARGV[10])
redis.call('HINCRBY', job, 'objects_failed', ARGV[11])
for at = 12, #ARGV, 3 do push(ARGV[at], ARGV[at + 1], ARGV[at + 2]) end
over_if_through()
return 1
"""
)

# ARGV[4] how many orphans, [5] the first of them, [6] the next number before, [7] after, [8] how
# many objects follow that have lost an item for good, then these; then object, node and item.
SHARED_OUT = Script(
    _START
    + """
local orphans, job = prefix .. 'x:' .. id, prefix .. 'j:' .. id
if redis.call('LINDEX', orphans, 0) ~= ARGV[5] or redis.call('HGET', job, 'next') ~= ARGV[6] then
  return 0
end
local old = redis.call('LRANGE', orphans, 0, tonumber(ARGV[4]) - 1)
redis.call('LTRIM', orphans, ARGV[4], -1)
redis.call('HSET', job, 'next', ARGV[7])
local lost = tonumber(ARGV[8])
for at = 9 + lost, #ARGV, 3 do push(ARGV[at], ARGV[at + 1], ARGV[at + 2]) end
for at = 9, 8 + lost do redis.call('HSET', prefix .. 'o:' .. id, 'f' .. ARGV[at], 1) end
for _, item in ipairs(old) do settle(string.match(item, '^%d+:(%d+)'), false) end
over_if_through()
return 1
"""
)
