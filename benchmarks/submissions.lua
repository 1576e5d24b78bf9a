-- Times job_submit.lua outside Slurm, over jobs that are plain tables: microseconds of CPU a job,
-- the median over some jobs at a time, and the least.
-- lua5.1 submissions.lua SCRIPT JOBS DATASETS LARGE
-- LARGE: how many rankings there are of each kind that is larger than most.

local script, jobs, datasets, large = arg[1], tonumber(arg[2]), tonumber(arg[3]), tonumber(arg[4])

slurm = { SUCCESS = 0, log_error = function() end }
assert(loadfile(script))()

-- A few jobs at a time: all of them at once would be a heap to be collected that the controller,
-- which has one job at a time, does not have.
local AT_ONCE = 20

local function time(name, make, rest)
   local times, preferred, number = {}, 0, 0
   local all, at_once = jobs, AT_ONCE
   if rest then
      all, at_once = math.min(jobs, 200), 1
   end
   while number < all do
      local made = {}
      for place = 1, at_once do
         number = number + 1
         made[place] = make(number)
      end
      if rest then
         os.execute("sleep " .. rest)
      end
      local began = os.clock()
      for place = 1, at_once do
         slurm_job_submit(made[place], {}, 1000)
      end
      times[#times + 1] = (os.clock() - began) / at_once * 1e6
      for place = 1, at_once do
         if made[place].prefer then
            preferred = preferred + 1
         end
      end
   end
   table.sort(times)
   local median = times[math.ceil(#times / 2)]
   print(string.format("%s\t%.3f\t%.3f\t%d", name, median, times[1], preferred))
end

-- Every dataset in turn, by steps that leave none of them twice in a row.
local function dataset(number, bucket, among)
   return string.format("s3://%s/d%05d", bucket or "train", number * 7919 % (among or datasets))
end

local SCRIPT = "#!/bin/sh\n" .. string.rep("echo one of its lines, 32 bytes\n", 2048)

local function job(fields)
   fields.user_id, fields.group_id, fields.min_nodes = 1000, 1000, 1
   fields.partition, fields.script = "main", "#!/bin/sh\ntrain\n"
   return fields
end

time("no hint", function()
   return job({})
end)
time("a hint in the comment", function(number)
   return job({ comment = "dataset=" .. dataset(number) })
end)
time("the same, each after 20 ms of rest", function(number)
   return job({ comment = "dataset=" .. dataset(number) })
end, 0.02)
time("a hint of the option", function(number)
   return job({
      spank_job_env = { "HOME=/root", "_SLURM_SPANK_OPTION_feedrack_dataset=" .. dataset(number) },
   })
end)
time("a hint, two nodes, a constraint", function(number)
   local made = job({ comment = "dataset=" .. dataset(number), features = "gpu" })
   made.min_nodes = 2
   return made
end)
-- Of users and groups these jobs' comes last, which takes longest to find.
time("a hint, 990 readers listed, the job's group the last", function(number)
   return job({ comment = "dataset=" .. dataset(number, "read-by-many", large) })
end)
time("a hint, 14 partitions, the job's the last", function(number)
   local made = job({ comment = "dataset=" .. dataset(number, "in-many-partitions", large) })
   made.partition = "part14"
   return made
end)
time("a hint, and a script of 64 KiB", function(number)
   local made = job({ comment = "dataset=" .. dataset(number) })
   made.script = SCRIPT
   return made
end)
time("a dataset nobody knows", function(number)
   return job({ comment = "dataset=s3://train/unknown" .. number })
end)
