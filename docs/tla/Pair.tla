-------------------------------- MODULE Pair --------------------------------
(* Record, lease, restart and late writes of the arbiter: the part of the protocol in docs/pair.md (R1 to R3, R2b, R4's
   epochs, R8) that decides which node may serve one LUN of one block. The model has two nodes, an arbiter with one versioned
   record, a link whose messages are delayed for any time and lost only with the link, clocks that advance together (the
   margin covers their drift), crashes of a process or of a machine, answers of the arbiter that never come and writes
   that land after both nodes have given them up. Names follow dataplane/pair; the comment beside each action names the
   function that the action abstracts. Left out: fencing by command, a replaced store, an orderly stop, the metadata log, more
   than one LUN, and frames of a resync, which is one step here: the simulator runs the code itself for those.

   Where acknowledged writes may be lost with both page caches, or with the page cache of a lone member before its flush, the
   code claims the record and reports the loss to hosts (R8); the model has no such report, so such a node waits.

   Bug removes one rule at a time; "none" is the protocol. hack/model.sh checks that TLC passes "none" and finds a
   history that breaks an invariant for every other value. *)
EXTENDS Integers, FiniteSets

CONSTANTS T,           \* lease, in ticks
          M,           \* margin of an excluder
          Start,       \* "paired", or "alone": node a is the only member, node b waits outside
          MaxEpoch, MaxUnknown, MaxDrops, MaxCrashes, MaxPower, MaxExclA, MaxExclB, MaxWrites,
          Bug

VARIABLES arb,         \* [ep, m, v]: epoch, members, version of the arbiter's record
          late,        \* compare-and-swaps that their node has given up and that may still land
          s,           \* state of each node
          sync, back, mmsg, mack, \* messages under way; at most one of each kind and direction
          wire,        \* the link is up
          wr,          \* the write under way
          seen,        \* newest value that a host knows: acknowledged or read
          next,        \* value of the next write
          reaped,      \* <<node, incarnation>> of processes that their supervisors have reaped
          left         \* what the environment may still do

vars == <<arb, late, s, sync, back, mmsg, mack, wire, wr, seen, next, reaped, left>>

Node == {"a", "b"}
Peer(n) == IF n = "a" THEN "b" ELSE "a"
Nobody == <<0, 0>>     \* an incarnation is <<boot, life>>
None == [none |-> TRUE]
Idle == [st |-> "idle"]
NoExcl == [on |-> FALSE, cons |-> FALSE, sent |-> FALSE]
MaxExcl(n) == IF n = "a" THEN MaxExclA ELSE MaxExclB \* excludes that a node begins without consent
Max(x, y) == IF x > y THEN x ELSE y
Dec(x) == IF x > 0 THEN x - 1 ELSE 0

Rec(r) == [ep |-> r.ep, m |-> r.m]
Both(r) == r.m["a"] # Nobody /\ r.m["b"] # Nobody
Only(n, inc, ep) == [ep |-> ep, m |-> [x \in Node |-> IF x = n THEN inc ELSE Nobody]]

Grant == Max(1, T \div 2) \* how long a source continues to serve while a readmission is unresolved

Mine(x, n) == x.rec.m[n] = x.inc
Admitting(x) == x.rs = "admit"
WantOpen(x) == x.doubt \/ x.ask.st \in {"cas", "casreply"}

(* Machine.Serving *)
Serving(n) ==
  LET x == s[n] IN
  /\ x.up /\ (~x.saving \/ Bug = "serve before the epoch is durable")
  /\ \/ x.phase = "alone" /\ (Admitting(x) => x.adm > 0)
     \/ /\ x.phase = "paired" /\ x.agreed /\ ~x.ex.on
        /\ x.lease > 0 \/ Bug = "serve past the lease"

Owns(n) == s[n].phase = "alone" \/ (s[n].phase = "paired" /\ s[n].own = n)
NoWriteAt(n) == IF wr = None THEN TRUE ELSE wr.n # n
Mirrors(n) == s[n].phase = "paired" \/ (s[n].phase = "alone" /\ s[n].rs # "none")

-----------------------------------------------------------------------------
Fresh(n) ==
  [up |-> TRUE, inc |-> <<1, 1>>, phase |-> "paired", rec |-> Rec(arb), ver |-> arb.v, dur |-> 1, saving |-> FALSE,
   lease |-> 0, grace |-> T + M, cw |-> 0, adm |-> 0, agreed |-> FALSE, ex |-> NoExcl, exn |-> 0, ask |-> Idle, doubt |-> FALSE,
   lk |-> TRUE, info |-> None, own |-> "a", rs |-> "none", stopped |-> FALSE, joined |-> FALSE, exposed |-> FALSE,
   data |-> 0, disk |-> 0, fl |-> 0, need |-> FALSE, \* fl, durable: everything that was acknowledged before this epoch is durable here
   rq |-> FALSE,  \* the arbiter may have accepted the {a,b} that this node asked for
   gh |-> 0]      \* lease of a process that still runs although its disk is in another machine

Init ==
  /\ arb = IF Start = "paired" THEN [ep |-> 1, m |-> [n \in Node |-> <<1, 1>>], v |-> 1]
           ELSE [ep |-> 2, m |-> Only("a", <<1, 1>>, 2).m, v |-> 2]
  /\ late = {}
  /\ s = [n \in Node |-> IF Start = "paired" THEN Fresh(n)
                         ELSE [Fresh(n) EXCEPT !.phase = IF n = "a" THEN "alone" ELSE "outside", !.dur = 2, !.grace = 0]]
  /\ sync = [n \in Node |-> None] /\ back = [n \in Node |-> None]
  /\ mmsg = None /\ mack = None /\ wire = TRUE
  /\ wr = None /\ seen = 0 /\ next = 1 /\ reaped = {}
  /\ left = [unk |-> MaxUnknown, drops |-> MaxDrops, crashes |-> MaxCrashes, power |-> MaxPower]

(* What a change of standing does to the write under way (becomeAlone, becomeOutside, resyncStop). *)
Settle(t) ==
  wr' = IF wr = None THEN None
        ELSE LET x == t[wr.n] IN
             IF ~x.up \/ x.phase \in {"outside", "starting", "fenced"} THEN None
             ELSE IF wr.st = "mirror" /\ x.phase = "alone" /\ x.rs = "none" THEN [wr EXCEPT !.st = "store"]
             ELSE wr

(* Set the node's state and apply what follows for the write under way. *)
Put(n, x) == s' = [s EXCEPT ![n] = x] /\ Settle([s EXCEPT ![n] = x])

Exclude(x, cons) ==
  IF x.phase # "paired" THEN x
  ELSE IF x.ex.on THEN [x EXCEPT !.ex.cons = @ \/ cons]
  ELSE [x EXCEPT !.ex = [on |-> TRUE, cons |-> cons, sent |-> FALSE], !.exn = @ + 1, !.agreed = FALSE]

ResyncStop(x) ==
  IF x.rs = "none" THEN x
  ELSE IF Admitting(x) /\ (x.ask.st # "idle" \/ x.saving \/ WantOpen(x)) /\ Bug # "an unresolved readmission is forgotten"
       THEN [x EXCEPT !.stopped = TRUE]
  ELSE [x EXCEPT !.rs = "none", !.stopped = FALSE, !.adm = 0, !.rq = FALSE]

(* Machine.enter *)
Enter(x, n) ==
  CASE Mine(x, n) /\ Both(x.rec) ->
         IF x.phase = "paired" THEN [x EXCEPT !.ex.sent = FALSE]
         ELSE [x EXCEPT !.phase = "paired", !.agreed = FALSE, !.lease = 0, !.grace = T + M, !.rs = "none", !.stopped = FALSE,
                        !.joined = FALSE, !.adm = 0, !.ex = NoExcl, !.rq = FALSE]
    [] Mine(x, n) /\ ~Both(x.rec) ->
         IF x.phase = "alone" THEN IF Admitting(x) /\ x.stopped THEN [x EXCEPT !.rs = "none", !.stopped = FALSE, !.adm = 0, !.rq = FALSE]
                                   ELSE [x EXCEPT !.rq = FALSE]
         ELSE [x EXCEPT !.phase = "alone", !.agreed = FALSE, !.exposed = (Bug # "alone without the flush"),
                        !.fl = IF Bug = "alone without the flush" THEN x.rec.ep ELSE @, !.own = n, !.ex = NoExcl,
                        !.rs = "none", !.stopped = FALSE, !.joined = FALSE]
    [] OTHER ->
         [x EXCEPT !.phase = "outside", !.agreed = FALSE, !.ex = NoExcl, !.rs = "none", !.stopped = FALSE, !.adm = 0, !.rq = FALSE,
                   !.exposed = FALSE, !.joined = (x.phase = "outside" /\ @),
                   \* A source that has just asked for this record may continue to serve for Grant: a claim waits from here too.
                   !.cw = IF Both(x.rec) /\ Bug # "a claim waits from the start of the process only" THEN Max(@, Grant + M) ELSE @]

(* Machine.onRecord *)
OnRecord(x, n, r, v) ==
  IF \/ r.ep < x.dur \/ r.ep < x.rec.ep
     \/ r.ep = x.rec.ep /\ r.m # x.rec.m
     \/ /\ x.phase = "alone" /\ r.ep > x.rec.ep /\ r.m[n] # x.inc  \* Machine.taken
        /\ ~x.rq \/ Bug = "a lone member that has asked takes its exclusion for a force"
  THEN [x EXCEPT !.phase = "fenced", !.agreed = FALSE]
  ELSE LET y == [x EXCEPT !.rec = r, !.ver = v, !.need = FALSE] IN
       IF r.ep > x.dur
       THEN IF Bug = "serve before the epoch is durable" THEN Enter([y EXCEPT !.saving = TRUE], n) ELSE [y EXCEPT !.saving = TRUE]
       ELSE Enter(y, n)

(* Machine.EpochSaved *)
EpochSaved(n) ==
  /\ s[n].up /\ s[n].saving
  /\ LET x == [s[n] EXCEPT !.dur = s[n].rec.ep, !.saving = FALSE] IN
     Put(n, IF Bug = "serve before the epoch is durable" THEN x ELSE Enter(x, n))
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, seen, next, reaped, left>>

-----------------------------------------------------------------------------
(* The arbiter. A compare-and-swap is sent, then served or given up, then answered, or its answer is lost. A read is served when
   it is sent, and its answer may be late by any time. *)

Reading == [st |-> "reply", ok |-> TRUE, rec |-> Rec(arb), v |-> arb.v]

Cas(x, want) == [x EXCEPT !.ask = [st |-> "cas", want |-> want, v |-> x.ver]]

Get(n) ==
  /\ s[n].up /\ s[n].ask.st = "idle"
  /\ \/ s[n].phase = "starting" \/ s[n].need \/ s[n].doubt
     \/ s[n].phase = "alone" /\ Rec(arb) # s[n].rec /\ ~s[n].saving \* Machine.watch; reading its own record would change nothing
  /\ Put(n, [s[n] EXCEPT !.ask = Reading])
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, seen, next, reaped, left>>

Free(x) == x.up /\ x.ask.st = "idle" /\ ~x.doubt /\ ~x.saving

(* tickMembership: the exclude takes its course. *)
ExcludeCas(n) ==
  /\ Free(s[n]) /\ s[n].phase = "paired" /\ s[n].ex.on /\ s[n].rec.ep < MaxEpoch
  /\ s[n].ex.cons \/ s[n].grace = 0 \/ Bug = "exclude without the wait"
  /\ Put(n, Cas([s[n] EXCEPT !.ex.sent = TRUE], Only(n, s[n].inc, s[n].rec.ep + 1)))
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, seen, next, reaped, left>>

(* Machine.hasEnded. A testimony may be late by any time: a node that is about to use it may also not have it yet, for no action has
   to be taken. *)
HasEnded(p, inc) == <<p, inc>> \in reaped \/ (Bug = "a testimony counts against every process of the node" /\ \E r \in reaped : r[1] = p)

(* Machine.testified: the record names a process that its supervisor has reaped. *)
Testified(n) ==
  LET p == Peer(n)
      x == s[n]
  IN /\ x.up /\ x.phase = "paired" /\ ~x.saving /\ ~x.ex.cons
     /\ HasEnded(p, x.rec.m[p])
     /\ Put(n, Exclude(x, TRUE))
     /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, seen, next, reaped, left>>

(* Machine.outside and claim, the flush before it included. *)
MayClaim(n) ==
  LET x == s[n]
      p == Peer(n)
      kept == x.rec.m[n][1] = x.inc[1]
      i == x.info
  IN /\ x.phase = "outside" /\ x.rec.m[n] # Nobody
     /\ \/ /\ ~Both(x.rec)
           \* Rebooted before the flush of becoming alone was done: only the peer may have what was acknowledged under {a,b}.
           /\ kept \/ x.fl >= x.rec.ep \/ Bug = "a rebooted lone member claims before its flush was done"
        \/ /\ x.lk /\ i # None
           /\ i.phase = "outside" /\ ~(i.inc = x.rec.m[p] /\ i.phase = "paired")
           /\ LET peerKept == x.rec.m[p][1] = i.inc[1] IN
              /\ (kept /\ ~peerKept) \/ (kept = peerKept /\ n = "a")
              \* Machine.leasesOver, succeeds: a former process of either node may still run in another machine.
              /\ (kept /\ (peerKept \/ HasEnded(p, x.rec.m[p]))) \/ x.cw = 0 \/ Bug = "a claim forgets a former process"
        \/ /\ ~(x.lk /\ i # None)
           /\ kept \/ Bug = "a rebooted node claims alone"
           /\ x.cw = 0 \/ (kept /\ HasEnded(p, x.rec.m[p])) \/ Bug = "a restarted node claims at once"

Claim(n) ==
  /\ Free(s[n]) /\ MayClaim(n) /\ s[n].rec.ep < MaxEpoch
  /\ Put(n, Cas([s[n] EXCEPT !.disk = IF Bug = "claim without the flush" THEN @ ELSE s[n].data, !.fl = s[n].rec.ep + 1],
                Only(n, s[n].inc, s[n].rec.ep + 1)))
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, seen, next, reaped, left>>

Apply(want, v) ==
  IF v = arb.v \/ Bug = "the arbiter does not compare"
  THEN arb' = [ep |-> want.ep, m |-> want.m, v |-> arb.v + 1] ELSE UNCHANGED arb

(* The call reaches the arbiter. *)
Serve(n) ==
  /\ s[n].up /\ s[n].ask.st = "cas"
  /\ LET c == s[n].ask IN
          /\ Apply(c.want, c.v)
          /\ s' = [s EXCEPT ![n].ask = [st |-> "casreply", ok |-> c.v = arb.v, rec |-> c.want, v |-> arb.v + 1]]
  /\ UNCHANGED <<late, sync, back, mmsg, mack, wire, wr, seen, next, reaped, left>>

(* Machine.ArbiterDone with an answer. *)
Answered(n) ==
  /\ s[n].up /\ s[n].ask.st \in {"reply", "casreply"}
  /\ LET c == s[n].ask
         x == [s[n] EXCEPT !.ask = Idle]
     IN Put(n, IF ~c.ok THEN [x EXCEPT !.doubt = FALSE, !.ask = Reading]      \* conflict: read again
               ELSE IF x.doubt /\ c.rec = x.rec /\ Bug # "no successor bars a late write"
                    THEN Cas([x EXCEPT !.doubt = FALSE, !.ver = c.v], x.rec)          \* bar a write that may yet land
               ELSE OnRecord([x EXCEPT !.doubt = FALSE], n, c.rec, c.v))
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, seen, next, reaped, left>>

(* Machine.ArbiterDone with Unknown: a write that was not served yet may land later, or never. *)
Unknown(n) ==
  /\ s[n].up /\ s[n].ask.st # "idle" /\ left.unk > 0
  /\ late' = IF s[n].ask.st = "cas" THEN late \cup {[want |-> s[n].ask.want, v |-> s[n].ask.v]} ELSE late
  /\ Put(n, [s[n] EXCEPT !.ask = Idle, !.doubt = @ \/ s[n].ask.st \in {"cas", "casreply"}, !.need = TRUE])
  /\ left' = [left EXCEPT !.unk = @ - 1]
  /\ UNCHANGED <<arb, sync, back, mmsg, mack, wire, seen, next, reaped>>

Land(l) ==
  /\ late' = late \ {l}
  /\ Apply(l.want, l.v)
  /\ UNCHANGED <<s, sync, back, mmsg, mack, wire, wr, seen, next, reaped, left>>

-----------------------------------------------------------------------------
(* Time. *)

Older(t) ==
  [n \in Node |-> IF t[n] = None THEN None ELSE IF t[n].age + 1 >= T /\ Bug # "the lease runs from the answer" THEN None ELSE [t[n] EXCEPT !.age = @ + 1]]

Tick ==
  /\ s' = [n \in Node |-> [s[n] EXCEPT !.lease = Dec(@), !.grace = Dec(@), !.cw = Dec(@), !.adm = Dec(@), !.gh = Dec(@)]]
  /\ back' = Older(back)
  /\ <<s, back>> # <<s', back'>>
  /\ UNCHANGED <<arb, late, sync, mmsg, mack, wire, wr, seen, next, reaped, left>>

-----------------------------------------------------------------------------
(* The link. *)

Live(n) == s[n].up /\ s[n].lk /\ wire

(* Machine.sync. ex numbers the sender's exclude, echo is the last such number that the sender has received. A message that
   would change nothing at the receiver is not sent, to keep the number of states down. *)
Standing(x) == [phase |-> x.phase, ep |-> x.rec.ep, d |-> x.dur, inc |-> x.inc,
                ex |-> IF x.ex.on THEN x.exn ELSE 0]
Echo(x) == IF x.info = None THEN 0 ELSE x.info.ex

SendSync(n) ==
  LET i == Standing(s[n])
      y == s[Peer(n)]
  IN /\ Live(n) /\ y.up /\ y.lk /\ sync[n] = None
     /\ \/ y.info # i
        \/ y.ex.on
        \/ y.phase = "paired" /\ ~y.agreed
        \/ i.ep > y.rec.ep
     /\ sync' = [sync EXCEPT ![n] = [said |-> i, echo |-> Echo(s[n])]]
     /\ UNCHANGED <<arb, late, s, back, mmsg, mack, wire, wr, seen, next, reaped, left>>

(* Machine.agree *)
Agree(x) == [x EXCEPT !.ex = NoExcl, !.agreed = TRUE]

(* Machine.onSync, onPairedSync *)
RecvSync(n) ==
  /\ Live(n) /\ sync[Peer(n)] # None
  /\ LET i == sync[Peer(n)].said
         echo == sync[Peer(n)].echo
         x == [s[n] EXCEPT !.info = i, !.need = @ \/ (i.ep > s[n].rec.ep /\ ~s[n].saving)]
         idle == ~x.ex.sent /\ ~x.ex.cons
         y == IF x.phase # "paired" \/ x.saving THEN x
              ELSE IF i.inc # x.rec.m[Peer(n)]
                   THEN Exclude(x, i.inc[1] = x.rec.m[Peer(n)][1] \/ HasEnded(Peer(n), x.rec.m[Peer(n)]) \/ Bug = "an equal store id is consent") \* SyncInfo.speaksFor
              ELSE IF i.phase # "paired" \/ i.ep # x.rec.ep THEN x
              ELSE IF x.ex.on
                   THEN IF (idle \/ Bug = "an exclude that was sent is called off") /\ echo = x.exn
                        THEN IF i.ex = 0 THEN Agree(x) ELSE [x EXCEPT !.ex = NoExcl]
                        ELSE x
              ELSE IF ~x.agreed /\ i.ex = 0 THEN Agree(x) ELSE x
     IN Put(n, y)
  /\ sync' = [sync EXCEPT ![Peer(n)] = None]
  /\ UNCHANGED <<arb, late, back, mmsg, mack, wire, seen, next, reaped, left>>

(* tickLink and Machine.onBeat: the answer gives the sender a lease that runs from when it sent the heartbeat, and gives the
   answering node a wait before it may exclude. A heartbeat that arrives late only makes that wait longer, so it arrives at once
   in this model; its answer may be late by any time. *)
Beat(n) ==
  LET p == Peer(n)
      x == s[n]
      y == s[p]
      ok == /\ y.phase = "paired" /\ ~y.saving /\ x.rec.ep = y.rec.ep
            /\ (y.agreed /\ ~y.ex.on) \/ Bug = "an excluder answers heartbeats"
  IN /\ Live(n) /\ Live(p) /\ back[n] = None /\ x.lease < T
     /\ x.phase = "paired" /\ ~x.saving /\ x.agreed /\ ~x.ex.on
     /\ ok
     /\ back' = [back EXCEPT ![n] = [ep |-> x.rec.ep, age |-> 0]]
     /\ s' = IF Bug # "an excluder answers heartbeats" \/ ~y.ex.on THEN [s EXCEPT ![p].grace = T + M] ELSE s
     /\ UNCHANGED <<arb, late, sync, mmsg, mack, wire, wr, seen, next, reaped, left>>

(* Machine.onBeatAck: the lease runs from when the heartbeat was sent. *)
RecvAck(n) ==
  /\ Live(n) /\ back[n] # None
  /\ back' = [back EXCEPT ![n] = None]
  /\ s' = IF s[n].phase = "paired" /\ back[n].ep = s[n].rec.ep /\ s[n].agreed
          THEN [s EXCEPT ![n].lease = Max(@, IF Bug = "the lease runs from the answer" THEN T ELSE T - back[n].age)] ELSE s
  /\ UNCHANGED <<arb, late, sync, mmsg, mack, wire, wr, seen, next, reaped, left>>

(* Machine.exclude for any reason: silence, a mirrored write unanswered. *)
GiveUp(n) ==
  /\ s[n].up /\ s[n].phase = "paired" /\ ~s[n].ex.on /\ ~s[n].saving /\ s[n].exn < MaxExcl(n)
  /\ Put(n, Exclude(s[n], FALSE))
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, seen, next, reaped, left>>

Quiet == sync' = [n \in Node |-> None] /\ back' = [n \in Node |-> None]
         /\ mmsg' = None /\ mack' = None

Break ==
  /\ wire /\ left.drops > 0
  /\ wire' = FALSE /\ Quiet /\ left' = [left EXCEPT !.drops = @ - 1]
  /\ UNCHANGED <<arb, late, s, wr, seen, next, reaped>>

(* Machine.LinkDown *)
LinkDown(n) ==
  /\ s[n].up /\ s[n].lk /\ ~wire
  /\ s[n].phase = "paired" => s[n].ex.on \/ s[n].exn < MaxExcl(n)
  /\ Put(n, ResyncStop(Exclude([s[n] EXCEPT !.lk = FALSE, !.agreed = FALSE, !.info = None, !.joined = FALSE], Bug = "a connection that was reset counts as a testimony")))
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, seen, next, reaped, left>>

LinkUp ==
  /\ \A n \in Node : s[n].up /\ ~s[n].lk
  /\ wire' = TRUE
  /\ s' = [n \in Node |-> [s[n] EXCEPT !.lk = TRUE, !.agreed = FALSE, !.info = None,
                                        !.cw = IF s[n].phase \in {"starting", "outside"} THEN Max(@, T + M) ELSE @]]
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wr, seen, next, reaped, left>>

-----------------------------------------------------------------------------
(* Crash of a process, or of a machine: then data that was only in the page cache may be lost. At most one machine loses its
   page cache in a history: the protocol promises no more. Or the machine still runs without its disk, which is in another
   machine now: the process serves reads until its lease has ended. *)
Crash(n, power) ==
  /\ s[n].up /\ left.crashes > 0 /\ (power => left.power > 0)
  /\ left' = [left EXCEPT !.crashes = @ - 1, !.power = IF power THEN @ - 1 ELSE @]
  /\ late' = IF s[n].ask.st = "cas" THEN late \cup {[want |-> s[n].ask.want, v |-> s[n].ask.v]} ELSE late
  /\ \E kept \in IF power THEN {s[n].disk, s[n].data} ELSE {s[n].data} :
     \E gh \in IF power /\ s[n].phase = "paired" /\ Serving(n) THEN {0, s[n].lease} ELSE {s[n].gh} :
     Put(n, [s[n] EXCEPT !.up = FALSE, !.data = kept, !.gh = gh, !.inc = IF power THEN <<@[1] + 1, @[2]>> ELSE @])
  /\ wire' = FALSE /\ Quiet
  /\ reaped' = IF power THEN {r \in reaped : r[1] # n} ELSE reaped \cup {<<n, s[n].inc>>} \* a supervisor ends with its machine
  /\ UNCHANGED <<arb, seen, next>>

Restart(n) ==
  /\ ~s[n].up
  /\ Put(n, [Fresh(n) EXCEPT !.inc = <<s[n].inc[1], s[n].inc[2] + 1>>, !.phase = "starting", !.rec = [ep |-> 0, m |-> [x \in Node |-> Nobody]],
                             !.ver = 0, !.dur = s[n].dur, !.lk = FALSE, !.cw = 2 * T + M, !.own = s[n].own, !.exn = s[n].exn,
                             !.data = s[n].data, !.disk = s[n].disk, !.fl = s[n].fl, !.gh = s[n].gh])
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, seen, next, reaped, left>>

-----------------------------------------------------------------------------
(* One block, one write at a time. *)

Durable(n) == s[n].phase = "alone" /\ Bug # "alone without write-through"

StartWrite(n) ==
  /\ wr = None /\ next <= MaxWrites /\ Serving(n) /\ Owns(n)
  /\ next' = next + 1
  /\ IF Mirrors(n) /\ Bug # "acknowledge before the mirror"
     THEN /\ wr' = [n |-> n, v |-> next, st |-> "mirror", dur |-> FALSE]
          /\ mmsg' = IF Live(n) THEN [to |-> Peer(n), v |-> next, ep |-> s[n].rec.ep, dur |-> Admitting(s[n])] ELSE None
     ELSE wr' = [n |-> n, v |-> next, st |-> "store", dur |-> FALSE] /\ UNCHANGED mmsg
  /\ UNCHANGED <<arb, late, s, sync, back, mack, wire, seen, reaped, left>>

(* Machine.onMirror *)
MirrorApply(n) ==
  LET x == s[n]
      takes == /\ (~x.saving /\ mmsg.ep = x.rec.ep) \/ Bug = "a mirrored write of an old epoch is applied"
               /\ \/ x.phase = "paired" /\ x.agreed /\ ~x.ex.on
                  \/ x.joined
                  \/ Bug = "a mirrored write of an old epoch is applied"
  IN /\ Live(n) /\ mmsg # None /\ mmsg.to = n /\ mack = None
     /\ mmsg' = None
     /\ IF takes THEN /\ s' = [s EXCEPT ![n].data = mmsg.v, ![n].disk = IF mmsg.dur THEN mmsg.v ELSE @]
                      /\ mack' = [to |-> Peer(n), v |-> mmsg.v, ep |-> x.rec.ep]
        ELSE UNCHANGED <<s, mack>>
     /\ UNCHANGED <<arb, late, sync, back, wire, wr, seen, next, reaped, left>>

MirrorAck(n) ==
  /\ Live(n) /\ mack # None /\ mack.to = n
  /\ mack' = None
  /\ wr' = IF wr # None /\ wr.n = n /\ wr.st = "mirror" /\ wr.v = mack.v /\ mack.ep = s[n].rec.ep /\ ~s[n].saving
           THEN [wr EXCEPT !.st = "store"] ELSE wr
  /\ UNCHANGED <<arb, late, s, sync, back, mmsg, wire, seen, next, reaped, left>>

(* Machine.storeWrite, StoreDone *)
StoreDone ==
  /\ wr # None /\ wr.st = "store"
  /\ LET d == Durable(wr.n) IN
     /\ wr' = [wr EXCEPT !.st = "answer", !.dur = d]
     /\ s' = [s EXCEPT ![wr.n].data = wr.v, ![wr.n].disk = IF d THEN wr.v ELSE @]
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, seen, next, reaped, left>>

(* Machine.answer *)
Answer ==
  /\ wr # None /\ wr.st = "answer" /\ Serving(wr.n)
  /\ s[wr.n].phase = "alone" /\ s[wr.n].exposed => wr.dur
  /\ seen' = Max(seen, wr.v) /\ wr' = None
  /\ UNCHANGED <<arb, late, s, sync, back, mmsg, mack, wire, next, reaped, left>>

(* A read waits for the range lock, which a write holds until its status is sent. *)
Read(n) ==
  /\ Serving(n) /\ Owns(n) /\ NoWriteAt(n) /\ s[n].data > seen
  /\ s[n].phase = "alone" => ~s[n].exposed
  /\ seen' = s[n].data
  /\ UNCHANGED <<arb, late, s, sync, back, mmsg, mack, wire, wr, next, reaped, left>>

(* Machine.SelfFlushed after becomeAlone *)
Flushed(n) ==
  /\ s[n].up /\ s[n].exposed
  /\ s' = [s EXCEPT ![n].exposed = FALSE, ![n].disk = s[n].data, ![n].fl = s[n].rec.ep]
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, wr, seen, next, reaped, left>>

-----------------------------------------------------------------------------
(* Readmission. *)

JoinerReady(n) ==
  LET i == s[n].info IN
  i # None /\ i.phase = "outside" /\ i.ep = s[n].rec.ep /\ i.d >= s[n].rec.ep /\ i.inc = s[Peer(n)].inc

(* resyncBegin to MetaAck: from here on writes go to the joiner too. *)
ResyncBegin(n) ==
  LET p == Peer(n) IN
  /\ Live(n) /\ Live(p) /\ s[n].phase = "alone" /\ s[n].rs = "none" /\ ~s[n].exposed /\ Free(s[n])
  /\ JoinerReady(n) /\ s[p].phase = "outside" /\ ~s[p].saving /\ s[p].rec = s[n].rec
  /\ wr = None
  /\ s' = [s EXCEPT ![n].rs = "copy", ![p].joined = TRUE, ![p].own = n]
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, wr, seen, next, reaped, left>>

(* The copy under the range lock, then everything durable at the joiner. *)
ResyncCopy(n) ==
  LET p == Peer(n) IN
  /\ Live(n) /\ Live(p) /\ s[n].phase = "alone" /\ s[n].rs = "copy" /\ s[p].joined /\ wr = None
  /\ s' = [s EXCEPT ![n].rs = "admit", ![p].data = s[n].data, ![p].disk = s[n].data]
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, wr, seen, next, reaped, left>>

Admit(n) ==
  /\ Free(s[n]) /\ s[n].phase = "alone" /\ Admitting(s[n]) /\ ~s[n].stopped /\ s[n].info # None /\ s[n].rec.ep < MaxEpoch
  /\ s[n].adm = 0
  /\ Put(n, Cas([s[n] EXCEPT !.adm = Grant, !.rq = TRUE],
                [ep |-> s[n].rec.ep + 1, m |-> [x \in Node |-> IF x = n THEN s[n].inc ELSE s[n].info.inc]]))
  /\ UNCHANGED <<arb, late, sync, back, mmsg, mack, wire, seen, next, reaped, left>>

-----------------------------------------------------------------------------
Next ==
  \/ Tick \/ Break \/ LinkUp \/ StoreDone \/ Answer
  \/ \E l \in late : Land(l)
  \/ \E n \in Node : \/ EpochSaved(n) \/ Get(n) \/ ExcludeCas(n) \/ Claim(n) \/ Serve(n) \/ Answered(n) \/ Unknown(n)
                     \/ SendSync(n) \/ RecvSync(n) \/ Beat(n) \/ RecvAck(n) \/ GiveUp(n) \/ LinkDown(n) \/ Testified(n)
                     \/ Crash(n, FALSE) \/ Crash(n, TRUE) \/ Restart(n)
                     \/ StartWrite(n) \/ MirrorApply(n) \/ MirrorAck(n) \/ Read(n) \/ Flushed(n)
                     \/ ResyncBegin(n) \/ ResyncCopy(n) \/ Admit(n)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Two nodes never execute commands of one LUN at the same time (R1, R3, R10). *)
OneServes == ~(Serving("a") /\ Serving("b") /\ Owns("a") /\ Owns("b"))

(* No node is alone and serves while a process whose disk is elsewhere may still serve what it has in memory (R2b). *)
NoGhost == \A n, q \in Node : s[n].gh > 0 => ~(Serving(q) /\ s[q].phase = "alone")

(* The node that serves has every value that a host knows: nothing acknowledged is lost, no read is undone (R1, R5, R8). *)
NothingLost == \A n \in Node : Serving(n) /\ Owns(n) /\ NoWriteAt(n) => s[n].data >= seen

(* No node serves under an epoch that a restart would forget (R2). *)
EpochDurable == \A n \in Node : Serving(n) => s[n].dur = s[n].rec.ep

(* A node fences itself only after a rollback of the arbiter, or a force. The model has neither: a lone member that reads the
   record never takes it for one of them. *)
NeverFenced == \A n \in Node : s[n].phase # "fenced"

Members == \E n \in Node : arb.m[n] # Nobody

(* The record never goes back, and one epoch has one content. *)
Monotonic == [][arb'.ep > arb.ep \/ (arb'.ep = arb.ep /\ arb'.m = arb.m)]_arb
=============================================================================
