-- Creates tables one after the other, or drops them: each event is one statement.
-- Run with --events=TABLES; each thread has tables of its own, as many as the others.

sysbench.cmdline.options = {
   phase = {"What is done: create or drop", "create"},
   count = {"Tables of all threads together", 100},
   columns = {"Columns of a table, besides its key", 4},
}

local ffi = require("ffi")

function thread_init()
   con = sysbench.sql.driver():connect()
end

function thread_run(id)
   local count, threads = sysbench.opt.count, sysbench.opt.threads
   local share = math.floor(count / threads) + (id < count % threads and 1 or 0)
   for number = 1, share do
      if not ffi.C.sb_more_events(id) then
         return
      end
      ffi.C.sb_event_start(id)
      one(string.format("t%d_%d", id, number))
      ffi.C.sb_event_stop(id)
   end
end

function one(name)
   if sysbench.opt.phase == "drop" then
      con:query("DROP TABLE IF EXISTS " .. name)
      return
   end
   local columns = {"id INT NOT NULL PRIMARY KEY"}
   for i = 1, sysbench.opt.columns do
      columns[#columns + 1] = string.format("c%d VARCHAR(60) NOT NULL DEFAULT ''", i)
   end
   con:query(string.format("CREATE TABLE %s (%s) ENGINE=InnoDB", name, table.concat(columns, ", ")))
end

function event()
end

function thread_done()
   con:disconnect()
end
