-- feedrack 1: prefers the nodes and racks that hold a job's dataset. See docs/slurm.md.
--
-- This runs inside the controller, under its locks. So it opens one small local file, once, and does
-- nothing else; and whatever is wrong, with the file, the job or this script, leaves the job as it
-- was submitted. Written by `feedrack-affinity install`; a site's own script can call it (see there).

local RANKINGS = "@RANKINGS@"
local MOST_WAIT_MINUTES = tonumber("@MOST_WAIT_MINUTES@")

-- Slurm refuses more than 1,024 characters, and more than 64 alternatives end the controller.
local MOST_PLACES, MOST_CHARACTERS = 16, 512
local MOST_FILE_BYTES, MOST_SCRIPT_BYTES = 16384, 16384
local MOST_HINT_BYTES, MOST_NAME_BYTES, MOST_DATASETS = 512, 200, 8
-- A ranking that claims to be good for longer was written by a clock that is wrong.
local MOST_VALID_SECONDS = 3600
-- Numbers from here on are Slurm's words for "not said"; of CPUs a task, which are 16 bits, the
-- second.
local NOT_SAID, NOT_SAID_SHORT = 4294967290, 65530
local OPTION = "^_SLURM_SPANK_OPTION_feedrack_([a-z_-]+)=(.*)$"

local ESCAPED = {}
for byte = 0, 255 do
   ESCAPED[string.char(byte)] = string.format("%%%02X", byte)
end

local function given(text)
   return text ~= nil and text ~= ""
end

local function number(value)
   if type(value) == "number" and value > 0 and value < NOT_SAID then
      return value
   end
   return nil
end

-- The hint and the minutes to wait, each from the first that says it: the option, the comment, the
-- script's line.
local function find_hint(job)
   local dataset, wait
   for _, entry in pairs(job.spank_job_env or {}) do
      local name, value = string.match(entry, OPTION)
      if name == "dataset" then
         dataset = given(value) and value or nil
      elseif name == "dataset_wait" or name == "dataset-wait" then
         wait = value
      end
   end
   local comment = job.comment
   -- Plain searches first: patterns are slow, and most jobs name nothing.
   if given(comment) and string.find(comment, "dataset", 1, true) then
      comment = " " .. comment
      dataset = dataset or string.match(comment, "[%s;]dataset=([^%s;]+)")
      wait = wait or string.match(comment, "[%s;]dataset%-wait=([^%s;]+)")
   end
   if dataset and wait then
      return dataset, wait
   end
   local script = job.script
   if given(script) then
      script = string.sub(script, 1, MOST_SCRIPT_BYTES)
      local at = string.find(script, "\n#DATASET", 1, true)
      if at then
         dataset = dataset or string.match(script, "\n#DATASET[ \t]+(%S+)", at)
         wait = wait or string.match(script, "\n#DATASET%-WAIT[ \t]+(%S+)", at)
      end
   end
   return dataset, wait
end

-- A name as it is written everywhere: without slashes at its end. Nil where it can be no dataset.
local function canonical(name)
   local bucket, rest = string.match(name, "^s3://([a-z0-9][a-z0-9.-]*)(.*)$")
   if not bucket or #bucket < 3 or #bucket > 63 or string.find(bucket, "[.-]$") then
      return nil
   end
   if rest ~= "" and string.byte(rest) ~= 47 then
      return nil
   end
   local last = #rest
   while last > 0 and string.byte(rest, last) == 47 do
      last = last - 1
   end
   return "s3://" .. bucket .. string.sub(rest, 1, last)
end

-- The datasets of a hint, each once, in their order; nil where one of them can be none.
local function read_hint(hint)
   if #hint > MOST_HINT_BYTES or string.find(hint, "[\1-\32\127\"'\\]") then
      return nil
   end
   local found, seen = {}, {}
   for name in string.gmatch(hint .. ",", "([^,]*),") do
      local dataset = canonical(name)
      if not dataset then
         return nil
      end
      if not seen[dataset] then
         seen[dataset] = true
         found[#found + 1] = dataset
      end
   end
   if #found > MOST_DATASETS then
      return nil
   end
   return found
end

local function file_name(dataset)
   local name = string.gsub(string.sub(dataset, 6), "[^A-Za-z0-9._-]", ESCAPED)
   if string.byte(name) == 46 then
      name = "%2E" .. string.sub(name, 2)
   end
   if #name > MOST_NAME_BYTES then
      return nil
   end
   return name
end

-- Users learn no more of it than of one that is not there: whose it is cannot be known.
local function malformed(name)
   slurm.log_error("feedrack: malformed ranking %s", name)
   return nil, "no-ranking"
end

-- The whole ranking of a dataset; nil and why not.
local function read_ranking(dataset)
   local name = file_name(dataset)
   if not name then
      return nil, "name-too-long"
   end
   -- For writing too, though nothing is written: a pipe that stood there would else be waited for.
   local file = io.open(RANKINGS .. "/" .. name, "r+")
   if not file then
      return nil, "no-ranking"
   end
   local size = file:seek("end")
   local text
   if size and size <= MOST_FILE_BYTES then
      file:seek("set")
      text = file:read(MOST_FILE_BYTES)
   end
   file:close()
   if not text or string.sub(text, -5) ~= "\nend\n" then
      return malformed(name)
   end
   return text
end

-- Whether a number is one of the words between two places of a text, the latter that of its line's
-- end. There can be a thousand: a plain search takes a tenth of what a pattern does.
local function lists(text, from, stop, number)
   local word = string.format(" %d", number)
   if string.sub(text, math.max(from, stop - #word), stop - 1) == word then
      return true
   end
   local at = string.find(text, word .. " ", from, true)
   return at ~= nil and at < stop
end

-- Whether whoever submits is among those the ranking is for whose lines begin here, and where these
-- end; nil where there are no such lines.
local function allowed(text, from, job)
   local users = string.find(text, "\n", from, true)
   local groups = users and string.find(text, "\n", users + 1, true)
   if
      not groups
      or string.sub(text, from, from + 5) ~= "users "
      or string.sub(text, users + 1, users + 6) ~= "groups"
   then
      return nil
   end
   return job.user_id == 0
      or string.sub(text, from + 6, users - 1) == "*"
      or lists(text, from + 5, users, job.user_id)
      or lists(text, users + 7, groups, job.group_id),
      groups + 1
end

-- The part of a ranking that speaks for these datasets together, else for the first alone. `readers`
-- is where the head of the file ends.
local function part_for(text, readers, datasets, job)
   local may, from = allowed(text, readers, job)
   if may == nil then
      return malformed(datasets[1])
   elseif not may then
      -- The same word as for a file that is not there: nobody is told of what others have.
      return nil, "no-ranking"
   end
   if #datasets > 1 then
      local others = {}
      for place = 2, #datasets do
         others[place - 1] = datasets[place]
      end
      local _, found = string.find(text, "\nwith " .. table.concat(others, ",") .. "\n", 1, true)
      if found then
         local also, start = allowed(text, found + 1, job)
         if also then
            from = start
         end
      end
   end
   local stop = string.find(text, "\nwith ", from - 1, true) or #text
   return string.sub(text, from - 1, stop)
end

-- How many nodes the job takes at least, how many CPUs all its tasks, and how many nodes it could
-- come to, at the worst, by what is not counted here: GPUs, and memory by CPU.
local function size_of(job)
   local cpus, worst = 0, 1
   local tasks = number(job.num_tasks)
   if tasks then
      local each = number(job.cpus_per_task)
      cpus = tasks * ((each and each < NOT_SAID_SHORT) and each or 1)
   end
   local more = (job.tres_per_job or "") .. "," .. (job.tres_per_task or "")
   if not number(job.max_nodes) and (more ~= "," or number(job.min_mem_per_cpu)) then
      worst = tasks or 1
      for count in string.gmatch(more, "[:=](%d+)") do
         worst = math.max(worst, tonumber(count))
      end
   end
   return number(job.min_nodes) or 1, cpus, worst
end

-- A whole line of a section.
local PLACE = "\n([A-Za-z0-9_.-]+) (%d+) (%d+) [^ \n]+%f[\n]"

-- The places of the job's partition that can hold the whole job, the best first, and whether that
-- takes several nodes on a strict release; nil and why not.
--
-- `strict` is for releases that hold a job for ever once they find no place that could ever hold all
-- of it (24.11 to 26.05 at least), and count wrong when they look: nodes of earlier places that are
-- busy are missing in later ones, a feature of all nodes among them. So there, where a job takes
-- several nodes, as many must be in no place at all.
local function places_for(part, job, default, strict)
   local partition = job.partition
   if not given(partition) then
      partition = default
   elseif string.find(partition, ",", 1, true) then
      partition = "*"
   end
   local places = {}
   local _, from = string.find(part, "\n[" .. partition .. "] ", 1, true)
   local size = from and tonumber(string.match(part, "^%d+", from + 1))
   if not size then
      return places
   end
   local section = string.sub(part, from + 1, string.find(part, "\n[", from, true) or #part)
   local nodes, all_cpus, worst = size_of(job)
   local used, careful = 0, false
   for feature, hosts, cpus in string.gmatch(section, PLACE) do
      local needed = nodes
      hosts, cpus = tonumber(hosts), tonumber(cpus)
      if all_cpus > cpus * nodes and cpus > 0 then
         needed = math.ceil(all_cpus / cpus)
      end
      local fits = hosts >= needed
      if strict and math.max(needed, worst) > 1 then
         if given(job.features) or given(job.exc_nodes) then
            return nil, "several-nodes-of-some"
         elseif strict == "!" then
            return nil, "no-common-feature"
         end
         fits = fits and size - used - hosts >= math.max(needed, worst)
         careful = true
      end
      if fits then
         places[#places + 1] = feature
         used = used + hosts
         if #places == MOST_PLACES - 1 then
            break
         end
      end
   end
   return places, careful
end

-- The places as one expression, with the user's own constraint in front and `last` at the end; nil
-- where not even one place has room.
local function expression(places, constraint, last)
   local front = given(constraint) and constraint .. "&" or ""
   local length, count = #front + 2 + #last, 0
   for _, feature in ipairs(places) do
      if length + #feature + 1 > MOST_CHARACTERS then
         break
      end
      length, count = length + #feature + 1, count + 1
   end
   if count == 0 then
      return nil
   end
   local inside = table.concat(places, "|", 1, count)
   if last ~= "" and places[count] ~= last then
      return front .. "[" .. inside .. "|" .. last .. "]"
   elseif count == 1 then
      return front .. inside
   end
   return front .. "[" .. inside .. "]"
end

-- Why the job is none of our business, whatever its dataset.
local function reason_to_pass(job)
   local component = job.het_job_offset
   if type(component) == "number" and component < NOT_SAID then
      -- Its parts start together: Slurm ignores what one of them prefers.
      return "het-job"
   elseif given(job.req_nodes) then
      return "own-nodes"
   elseif given(job.prefer) then
      return "own-preference"
   elseif number(job.max_nodes) and job.max_nodes ~= job.min_nodes then
      -- A preference would make it as small as what is free there.
      return "range-of-nodes"
   elseif given(job.features) and string.find(job.features, "[^A-Za-z0-9_.:=&-]") then
      return "complex-constraint"
   end
   return nil
end

-- What is to be preferred, and what is to be waited for; nil and why not. Where a job waits for its
-- places, what it prefers must be those and no others, since a preference goes before a constraint;
-- and where it takes several nodes on a strict release it waits for one place, and prefers none.
local function decide(job, datasets, waits)
   local why = reason_to_pass(job)
   if why then
      return nil, why
   end
   local text, missing = read_ranking(datasets[1])
   if not text then
      return nil, missing
   end
   local expires, arrays, default, common, dataset, readers =
      string.match(text, "^feedrack%-ranking 1 (%d+) (%l+) (%S+) (%S+)\ndataset ([^\n]*)\n()")
   if dataset ~= datasets[1] then
      return malformed(datasets[1])
   end
   local part, denied = part_for(text, readers, datasets, job)
   if not part then
      return nil, denied
   end
   local left = tonumber(expires) - os.time()
   if left < 0 or left > MOST_VALID_SECONDS then
      return nil, "stale-ranking"
   end
   if given(job.array_inx) and arrays ~= "yes" then
      return nil, "array-on-this-release"
   end
   local places, careful = places_for(part, job, default, common ~= "-" and common)
   if not places then
      return nil, careful
   end
   local last = string.match(common, "^[A-Za-z0-9_.-]+$")
   if not last or last == "-" then
      last = ""
   end
   local preferred = expression(places, job.features, last)
   if not preferred then
      return nil, "no-place"
   end
   if not waits then
      return preferred
   elseif careful then
      return "", expression({ places[1] }, job.features, "")
   end
   local waited = expression(places, job.features, "")
   return waited, waited
end

-- The minutes that the job asks to wait, nil where it does not.
local function minutes_of(text)
   local minutes = text and string.match(text, "^%d+$") and tonumber(text)
   if minutes and minutes > 0 then
      return math.min(minutes, MOST_WAIT_MINUTES)
   end
   return nil
end

-- Whether the job can be told to wait: one that is to start at once would be refused.
local function may_wait(job)
   return not number(job.immediate)
end

-- Names as one word of a comment; what else is in it has no sign that needs it.
local function escaped(names)
   return (string.gsub(names, "[^A-Za-z0-9._/:,-]", ESCAPED))
end

local function place(job)
   local hint, minutes = find_hint(job)
   if not hint then
      return
   end
   if given(job.admin_comment) and string.find(job.admin_comment, "feedrack did=", 1, true) then
      -- Called twice, by a site's own script and by Slurm.
      return
   end
   local said = { given(job.admin_comment) and job.admin_comment .. " feedrack" or "feedrack" }
   local function say(name, text)
      said[#said + 1] = name .. "=" .. text
   end
   local datasets = read_hint(hint)
   if not datasets then
      job.admin_comment = said[1] .. " did=nothing why=bad-hint"
      return
   end
   local wait = minutes and may_wait(job) and minutes_of(minutes)
   local preferred, places = decide(job, datasets, wait)
   local bound
   if preferred then
      say("did", "preferred")
      say("prefer", preferred)
      if wait then
         local begin = math.max(number(job.begin_time) or 0, os.time())
         bound = begin + 60 * wait
         say("begin", string.format("%d", begin))
         say("wait", string.format("%d", bound))
         say("places", places)
         say("constraint", given(job.features) and job.features or "")
      end
   else
      say("did", "nothing")
      say("why", places)
   end
   say("dataset", escaped(table.concat(datasets, ",")))
   if given(preferred) then
      job.prefer = preferred
   end
   if bound then
      -- Held until the bound by Slurm itself: the daemon lets it start earlier, where its data are.
      job.begin_time = bound
   end
   job.admin_comment = table.concat(said, " ")
end

function slurm_job_submit(job_desc, part_list, submit_uid)
   local done, problem = pcall(place, job_desc)
   if not done then
      pcall(slurm.log_error, "feedrack: %s", tostring(problem))
   end
   return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
   return slurm.SUCCESS
end

return slurm.SUCCESS
