-- feedrack 1: holds a job until its data is staged. See docs/slurm.md, "Staging".
--
-- For jobs with a line such as `#FEEDRACK stage=0.9 wait=30` in their script. All but one of these
-- functions have nothing to do, but must be there. An error in one of them would hold the job for
-- ever, so there is none: what is wrong ends the waiting.

local STAGED = "@STAGED@"
local MOST_WAIT_MINUTES = tonumber("@MOST_WAIT_MINUTES@")

local MOST_SCRIPT_BYTES = 16384
-- Without a word from the daemon for so long it is taken to be away.
local SILENT_SECONDS = 60
local DEFAULT_WAIT_MINUTES = 30

local function read(path, most)
   -- For writing too, though nothing is written: a pipe that stood there would else be waited for.
   local file = io.open(path, "r+")
   if not file then
      return nil
   end
   local text = file:seek("end") and file:seek("set") and file:read(most)
   file:close()
   return text
end

-- The part to be staged and the seconds to wait at most, as the job's script says.
local function asked(script)
   local text = read(script, MOST_SCRIPT_BYTES) or ""
   local line = string.match("\n" .. text, "\n#FEEDRACK[ \t]+([^\n]*)") or ""
   local part = tonumber(string.match(line, "stage=([%d.]+)") or "1") or 1
   local minutes = tonumber(string.match(line, "wait=(%d+)") or "") or DEFAULT_WAIT_MINUTES
   return math.min(part, 1), 60 * math.min(minutes, MOST_WAIT_MINUTES)
end

-- The part that is staged, as the daemon last said, and when it did.
local function staged(job_id)
   local text = read(STAGED .. "/" .. job_id, 100) or ""
   local part, at = string.match(text, "^([%d.]+) (%d+)\n")
   return tonumber(part or ""), tonumber(at or "")
end

local function wait_for(job_id, script)
   if not string.find(job_id, "^%d+$") then
      return
   end
   local part, seconds = asked(script)
   local began = os.time()
   local heard = began
   while os.time() - began < seconds do
      local ready, at = staged(job_id)
      if ready and at then
         heard = math.max(heard, math.min(at, os.time()))
         if ready >= part then
            return
         end
      end
      if os.time() - heard > SILENT_SECONDS then
         return
      end
      -- Lua has no way to wait, nor has Slurm's part of it. This one is a shell's, and harmless: the
      -- text is a constant, with nothing of the job's in it; and all this runs in a process that
      -- slurmscriptd has started for this job, so that slurmctld neither forks nor waits for it.
      local slept = os.execute("sleep 1")
      if slept ~= 0 and slept ~= true then
         return
      end
   end
end

function slurm_bb_data_in(job_id, script)
   pcall(wait_for, tostring(job_id), script)
   return slurm.SUCCESS
end

local function nothing()
   return slurm.SUCCESS
end

slurm_bb_job_process = nothing
slurm_bb_job_teardown = nothing
slurm_bb_setup = nothing
slurm_bb_test_data_in = nothing
slurm_bb_paths = nothing
slurm_bb_pre_run = nothing
slurm_bb_post_run = nothing
slurm_bb_data_out = nothing
slurm_bb_test_data_out = nothing

function slurm_bb_pools()
   return slurm.SUCCESS, ""
end

function slurm_bb_real_size()
   return slurm.SUCCESS, ""
end

function slurm_bb_get_status()
   return slurm.SUCCESS, ""
end

return slurm.SUCCESS
