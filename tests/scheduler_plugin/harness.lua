-- Runs job_submit.lua outside Slurm: a job a line comes in, what became of it goes out.
-- Lines are hexadecimal: in, a Lua table; out, the words of the answer with zero bytes between.

local script = assert(arg[1])
local opened, errors = {}, 0
local open = io.open
io.open = function(path, mode)
   opened[#opened + 1] = path
   return open(path, mode)
end
for _, name in ipairs({ "popen", "lines", "input", "output" }) do
   io[name] = function()
      error("not to be called: io." .. name)
   end
end
for _, name in ipairs({ "execute", "remove", "rename", "tmpname", "exit" }) do
   os[name] = function()
      error("not to be called: os." .. name)
   end
end

slurm = { SUCCESS = 0 }
slurm.log_error = function()
   errors = errors + 1
end
assert(loadfile(script))()

local function from_hex(text)
   return (string.gsub(text, "%x%x", function(pair)
      return string.char(tonumber(pair, 16))
   end))
end
local function to_hex(text)
   return (string.gsub(text, ".", function(sign)
      return string.format("%02x", string.byte(sign))
   end))
end

for line in io.stdin:lines() do
   opened, errors = {}, 0
   local job = assert((loadstring or load)("return " .. from_hex(line)))()
   local code = slurm_job_submit(job, {}, job.user_id)
   local words = { tostring(code), tostring(errors), tostring(#opened), opened[1] or "" }
   for _, name in ipairs({ "prefer", "begin_time", "admin_comment", "features" }) do
      words[#words + 1] = job[name] == nil and "-" or "+" .. tostring(job[name])
   end
   print(to_hex(table.concat(words, "\0")))
   io.stdout:flush()
end
