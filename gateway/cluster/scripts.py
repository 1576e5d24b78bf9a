"""What the cluster does in Redis, each in one step. Lua, run by `Link.script`.

Keys, in the order every script gets them:

    meta          hash: token (names this beginning from empty), joined (a count), established
    members       hash: id → the member as JSON
    runs          hash: id → incarnation
    renewals      hash: id → how often that run has renewed its lease
    told          hash: id → what that run tells of itself with each renewal, as JSON
    changes       stream: join, leave, update, begin, end
    open          hash of the asking run: number of a change → its keys

and beside them, under the prefix of all: doubted, a set of runs that ended with changes open, and
for each, while the origin may still do what it was asked for, the hash that was its `open`.

`meta.established` is the run id of a Redis process, once every lease that an earlier one may have
granted is over. Each script that grants or begins anything says which process it talked to.
"""

from gateway.index.cluster import Script

_PROCESS = """
local process = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local meta, members, runs, renewals, told, changes, open = unpack(KEYS)
"""
# What a run leaves open is not over: the origin may still do it. Who joins later must know.
_ABANDON = """
local function abandon(prefix, run, seconds)
    if redis.call('EXISTS', prefix .. 'open:' .. run) == 1 then
        redis.call('RENAME', prefix .. 'open:' .. run, prefix .. 'doubt:' .. run)
        redis.call('EXPIRE', prefix .. 'doubt:' .. run, seconds)
        redis.call('SADD', prefix .. 'doubted', run)
    end
    redis.call('DEL', prefix .. 'acks:' .. run)
end
"""
_MINE = """
local id, incarnation = ARGV[1], ARGV[2]
if redis.call('HGET', runs, id) ~= incarnation then
    return {'expelled', process}
end
"""

# id, incarnation, member as JSON without `joined`, token to begin with, the incarnation that may be
# taken over from and its count of renewals, prefix of all keys, how many changes to keep.
JOIN = Script(
    _PROCESS
    + _ABANDON
    + """
local id, incarnation, member, token, before, count, prefix, kept, doubt = unpack(ARGV)
redis.call('HSETNX', meta, 'token', token)
local there = redis.call('HGET', runs, id)
if there and there ~= incarnation then
    local renewed = redis.call('HGET', renewals, id) or '0'
    if there ~= before or (count ~= '' and renewed ~= count) then
        return {'claimed', process, there, renewed, redis.call('HGET', members, id)}
    end
    abandon(prefix, id .. ':' .. there, doubt)
end
local joined = redis.call('HINCRBY', meta, 'joined', 1)
member = string.gsub(member, '"joined":0', '"joined":' .. joined, 1)
redis.call('HSET', members, id, member)
redis.call('HSET', runs, id, incarnation)
redis.call('HSET', renewals, id, 1)
local place = redis.call('XADD', changes, 'MAXLEN', '~', kept, '*', 'k', 'join', 'd', member)
local all = redis.call('HVALS', members)
local changing = {}
local flat = redis.call('HGETALL', runs)
for i = 1, #flat, 2 do
    local held = redis.call('HGETALL', prefix .. 'open:' .. flat[i] .. ':' .. flat[i + 1])
    if #held > 0 then
        changing[#changing + 1] = {flat[i], flat[i + 1], held}
    end
end
local doubted = {}
for _, run in ipairs(redis.call('SMEMBERS', prefix .. 'doubted')) do
    local held = redis.call('HVALS', prefix .. 'doubt:' .. run)
    if #held > 0 then
        doubted[#doubted + 1] = {run, held}
    else
        redis.call('SREM', prefix .. 'doubted', run)
    end
end
local established = redis.call('HGET', meta, 'established') == process
return {'joined', process, redis.call('HGET', meta, 'token'), place, all, changing,
    established and 1 or 0, doubted}
"""
)

# id, incarnation, 1 if leases of earlier processes are over, what it tells of itself; then ids of
# whom the renewals are wanted.
RENEW = Script(
    _PROCESS
    + _MINE
    + """
redis.call('HINCRBY', renewals, id, 1)
if ARGV[3] == '1' then
    redis.call('HSET', meta, 'established', process)
end
redis.call('HSET', told, id, ARGV[4])
local counts = {}
for i = 5, #ARGV do
    counts[#counts + 1] = redis.call('HGET', renewals, ARGV[i]) or '0'
end
return {'renewed', process, counts}
"""
)

# id, incarnation, process, how many changes to keep; then kind, number and keys of each.
APPEND = Script(
    _PROCESS
    + _MINE
    + """
if process ~= ARGV[3] then
    return {'expelled', process}
end
local places = {}
for i = 5, #ARGV, 3 do
    local kind, number, keys = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local entry = {'XADD', changes, 'MAXLEN', '~', ARGV[4], '*', 'k', kind,
        'n', id, 'i', incarnation, 'c', number}
    if kind == 'begin' then
        redis.call('HSET', open, number, keys)
        entry[#entry + 1] = 'd'
        entry[#entry + 1] = keys
    else
        redis.call('HDEL', open, number)
    end
    places[#places + 1] = redis.call(unpack(entry))
end
return {'appended', process, places}
"""
)

# id, incarnation, member as JSON, how many changes to keep.
UPDATE = Script(
    _PROCESS
    + _MINE
    + """
redis.call('HSET', members, id, ARGV[3])
redis.call('XADD', changes, 'MAXLEN', '~', ARGV[4], '*', 'k', 'update', 'd', ARGV[3])
return {'updated', process}
"""
)

# id, incarnation, its count of renewals or '' for any, how many changes to keep, prefix of all
# keys, for how many seconds what was abandoned stays doubtful. `open` is that run's.
LEAVE = Script(
    _PROCESS
    + _ABANDON
    + _MINE
    + """
if ARGV[3] ~= '' and redis.call('HGET', renewals, id) ~= ARGV[3] then
    return {'alive', process}
end
redis.call('HDEL', members, id)
redis.call('HDEL', runs, id)
redis.call('HDEL', renewals, id)
redis.call('HDEL', told, id)
abandon(ARGV[5], id .. ':' .. incarnation, ARGV[6])
redis.call('XADD', changes, 'MAXLEN', '~', ARGV[4], '*', 'k', 'leave', 'n', id, 'i', incarnation)
return {'left', process}
"""
)
