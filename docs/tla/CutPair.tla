------------------------------ MODULE CutPair ------------------------------
(* The part of Cut.tla that is the pairs': their logs, their nodes, the host that writes, and what fails. *)
EXTENDS Integers, FiniteSets

CONSTANTS Wide,        \* both nodes of pair 1 own a member
          Two,         \* two coordinators work
          AnyOrder,    \* a coordinator asks pairs in any order for what is not a hold or a cut
          Seals,       \* copies are sealed, so that a group can be published
          Deletes,     \* the object may be deleted
          MaxAtt, MaxWrites,
          MaxLate, MaxLapses, MaxFails, MaxLost, MaxFaults, \* of each kind, and of all kinds together
          Bug

VARIABLES obj,         \* the object: attempt, phase, and the attempt of each member's snapshot once it is published
          co,          \* coordinators
          late,        \* messages that their coordinator has given up or repeated
          pr,          \* log of each pair: recorded attempt, final, highest attempt that was voided
          making,      \* attempts for which a pair is about to make files
          snap,        \* snap[l][a]: the snapshot of LUN l by attempt a
          upto,        \* upto[n][a]: number of records that had been executed when node n began with the copies of attempt a, -1 before that
          hold, hid,   \* hold of each node, and how many holds it has had
          ask,         \* what a node that was asked for a cut is doing
          entries,     \* entries that were proposed and have no outcome
          own,         \* owner and ownership sequence number of each LUN
          w, rec,      \* the record under way; the pair of each record
          base,        \* base[a]: records acknowledged before the first hold of attempt a was requested, -1 before that
          left         \* what the environment may still do

vars == <<obj, co, late, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

Pair == {1, 2}
Node == {"1a", "1b", "2a"}
LUN == IF Wide THEN {"x", "y", "z"} ELSE {"x", "z"}
P(n) == IF n = "2a" THEN 2 ELSE 1
Nodes(p) == {n \in Node : P(n) = p}
Peer(n) == IF n = "1a" THEN "1b" ELSE "1a"    \* of a node of pair 1
PairOf(l) == IF l = "z" THEN 2 ELSE 1
Members(p) == {l \in LUN : PairOf(l) = p}
Attempt == 1..MaxAtt
Coord == IF Two THEN {"old", "new"} ELSE {"old"}
None == [none |-> TRUE]
NoAns == [l \in LUN |-> None]
Max(x, y) == IF x > y THEN x ELSE y

Owned(n) == {l \in LUN : own[l].n = n}
Executed == IF w.st = "done" THEN w.k ELSE w.k - 1
Cut(p, a) == \A l \in Members(p) : snap[l][a] \in {"marked", "sealed"}
Sealed(p, a) == \A l \in Members(p) : snap[l][a] = "sealed"
Begun(n, a) == upto[n][a] >= 0
State(st, att) == [st |-> st, att |-> att, done |-> {}, seen |-> {}, ans |-> NoAns]

Init ==
  /\ obj = [att |-> 1, ph |-> "cut", mem |-> [l \in LUN |-> 0]]
  /\ co = [c \in Coord |-> IF c = "old" THEN State("prepare", 1) ELSE State("idle", 0)]
  /\ late = {}
  /\ pr = [p \in Pair |-> [att |-> 0, final |-> FALSE, void |-> 0]]
  /\ making = [p \in Pair |-> {}]
  /\ snap = [l \in LUN |-> [a \in Attempt |-> "-"]]
  /\ upto = [n \in Node |-> [a \in Attempt |-> 0 - 1]]
  /\ hold = [n \in Node |-> None] /\ hid = [n \in Node |-> 0]
  /\ ask = [n \in Node |-> None] /\ entries = {}
  /\ own = [l \in LUN |-> [n |-> CASE l = "x" -> "1a" [] l = "y" -> "1b" [] l = "z" -> "2a", seq |-> 0]]
  /\ w = [k |-> 1, st |-> "idle", l |-> "x"] /\ rec = [k \in 1..MaxWrites |-> 1]
  /\ base = [a \in Attempt |-> 0 - 1]
  /\ left = [lapses |-> MaxLapses, fails |-> MaxFails, lost |-> MaxLost, late |-> MaxLate, faults |-> MaxFaults, deletes |-> Deletes]

May(kind) == left[kind] > 0 /\ left.faults > 0
Fault(kind) == left' = [left EXCEPT ![kind] = @ - 1, !.faults = @ - 1]

-----------------------------------------------------------------------------
(* The host. What is not acknowledged may be repeated on any member: that allows more than a host
   does. *)

HeldAt(l) == hold[own[l].n] # None /\ l \in hold[own[l].n].luns

(* What is executed before a node begins is in every copy, so records wait for a hold or a mark. *)
Matters == (\E n \in Node : hold[n] # None) \/ \E l \in LUN, a \in Attempt : snap[l][a] \in {"marked", "sealed"}

Start(l) ==
  /\ w.st = "idle" /\ w.k <= MaxWrites /\ ~HeldAt(l) /\ Matters
  /\ w' = [w EXCEPT !.st = "started", !.l = l]
  /\ UNCHANGED <<obj, co, late, pr, making, snap, upto, hold, hid, ask, entries, own, rec, base, left>>

(* On both nodes. A node that has not begun will have this record in its copy. *)
Execute ==
  /\ w.st = "started"
  /\ w' = [w EXCEPT !.st = "done", !.l = "x"] /\ rec' = [rec EXCEPT ![w.k] = PairOf(w.l)]
  /\ UNCHANGED <<obj, co, late, pr, making, snap, upto, hold, hid, ask, entries, own, base, left>>

Acknowledge ==
  /\ w.st = "done"
  /\ w' = [k |-> w.k + 1, st |-> "idle", l |-> "x"]
  /\ UNCHANGED <<obj, co, late, pr, making, snap, upto, hold, hid, ask, entries, own, rec, base, left>>

-----------------------------------------------------------------------------
(* What a pair does with a message. *)

(* One entry raises the attempt; the files follow in entries of their own (Make). *)
PrepareAt(a, p) ==
  /\ ~pr[p].final
  /\ a >= pr[p].att \/ Bug = "a pair accepts a lower attempt"
  /\ pr' = [pr EXCEPT ![p].att = a]
  /\ making' = [making EXCEPT ![p] = @ \cup {a}]

(* No attempt is compared here: a hold by itself decides nothing, and ends. *)
HoldAt(a, n) ==
  /\ hold[n] = None /\ Owned(n) # {}
  /\ hold' = [hold EXCEPT ![n] = [att |-> a, id |-> hid[n] + 1, st |-> "wait", luns |-> Owned(n)]]
  /\ hid' = [hid EXCEPT ![n] = @ + 1]
  /\ base' = [base EXCEPT ![a] = IF @ < 0 THEN w.k - 1 ELSE @]

HeldBy(ans, n) == {l \in Members(P(n)) : ans[l] # None /\ ans[l].n = n}

Others(ans, n) == IF P(n) = 2 THEN {} ELSE HeldBy(ans, Peer(n))

(* The hold that was answered still stands. It is known by its number: a message that was repeated,
   or a node that was restarted, may have begun another hold of the same attempt. *)
Stands(a, n, ans) ==
  \/ Bug = "a cut is accepted after its hold has lapsed"
  \/ /\ hold[n] # None /\ hold[n].att = a
     /\ \A l \in HeldBy(ans, n) : hold[n].id = ans[l].id \/ Bug = "a hold is known by its attempt only"

Fix(h) == IF h = None THEN None ELSE [h EXCEPT !.st = IF @ \in {"wait", "held"} THEN "fixed" ELSE @]

(* The node that is asked fixes its own hold first; one that has none is refused, for it may have been
   restarted. The other node's copies have to begin too, also where it holds nothing. *)
CutAt(a, n, ans) ==
  /\ ask[n] = None /\ ~pr[P(n)].final /\ ~Cut(P(n), a)
  /\ IF HeldBy(ans, n) = {} THEN Bug = "a node that holds nothing cuts" ELSE Stands(a, n, ans)
  /\ ask' = [ask EXCEPT ![n] = [att |-> a, st |-> IF P(n) = 2 THEN "go" ELSE "fix",
                             ans |-> [l \in LUN |-> IF l \in Members(P(n)) THEN ans[l] ELSE None]]]
  /\ hold' = IF HeldBy(ans, n) # {} THEN [hold EXCEPT ![n] = Fix(@)] ELSE hold

(* Snapshots of earlier attempts are removed. *)
ClearAt(a, p) ==
  /\ snap' = [l \in LUN |-> [b \in Attempt |-> IF l \in Members(p) /\ b < a THEN "-" ELSE snap[l][b]]]
  /\ upto' = [n \in Node |-> [b \in Attempt |-> IF P(n) = p /\ b < a THEN 0 - 1 ELSE upto[n][b]]]

-----------------------------------------------------------------------------
(* The log of a pair, and its nodes. *)

Make(p, a) ==
  /\ a \in making[p]
  /\ making' = [making EXCEPT ![p] = @ \ {a}]
  /\ LET ok == (pr[p].att = a /\ ~pr[p].final) \/ Bug = "files are made without a look at the recorded attempt"
         early == Bug = "a file is marked when it is made"
         new == {l \in Members(p) : ok /\ snap[l][a] = "-"}
     IN /\ snap' = [l \in LUN |-> IF l \in new THEN [snap[l] EXCEPT ![a] = IF early THEN "marked" ELSE "made"] ELSE snap[l]]
        /\ upto' = [n \in Node |-> IF P(n) = p /\ new # {} /\ early THEN [upto[n] EXCEPT ![a] = Executed] ELSE upto[n]]
  /\ UNCHANGED <<obj, co, late, pr, hold, hid, ask, entries, own, w, rec, base, left>>

(* No write is at work on what is held. *)
Drained(n) ==
  /\ hold[n] # None /\ hold[n].st = "wait"
  /\ ~(w.st = "started" /\ w.l \in hold[n].luns) \/ Bug = "an owner answers while a write is at work"
  /\ hold' = [hold EXCEPT ![n].st = "held"]
  /\ UNCHANGED <<obj, co, late, pr, making, snap, upto, hid, ask, entries, own, w, rec, base, left>>

Lapse(n) ==
  /\ May("lapses") /\ hold[n] # None
  /\ hold[n].st \in {"wait", "held"} \/ (hold[n].st = "fixed" /\ Bug = "a fixed hold lapses")
  /\ hold' = [hold EXCEPT ![n] = None]
  /\ Fault("lapses")
  /\ UNCHANGED <<obj, co, late, pr, making, snap, upto, hid, ask, entries, own, w, rec, base>>

(* The hold that node n has fixed for what it was asked: not a later one. *)
Its(x, n) == hold[n] # None /\ hold[n].att = x.att /\ hold[n].st \notin {"wait", "held"}

(* From here on node n copies what is about to change. The files of an attempt are begun once. *)
MayBegin(n, a) == ~Begun(n, a) \/ Bug = "a repeated cut begins again"
Begins(n, a) == upto' = [upto EXCEPT ![n][a] = Executed]

Refuse(n) ==
  /\ hold' = IF Its(ask[n], n) THEN [hold EXCEPT ![n] = None] ELSE hold \* nothing was proposed
  /\ ask' = [ask EXCEPT ![n] = None]
  /\ UNCHANGED upto

(* The other node fixes its hold, and begins. *)
FixOther(n) ==
  /\ ask[n] # None /\ ask[n].st = "fix"
  /\ LET x == ask[n]
     IN IF MayBegin(Peer(n), x.att) /\ (Others(x.ans, n) = {} \/ Stands(x.att, Peer(n), x.ans))
        THEN /\ Begins(Peer(n), x.att)
             /\ hold' = IF Others(x.ans, n) = {} THEN hold ELSE [hold EXCEPT ![Peer(n)] = Fix(@)]
             /\ ask' = [ask EXCEPT ![n].st = "go"]
        ELSE Refuse(n)
  /\ UNCHANGED <<obj, co, late, pr, making, snap, hid, entries, own, w, rec, base, left>>

(* The asked node begins last. Then the entry is on its way, and the hold ends: nothing waits for the
   log. What is marked by the entry is what each node has begun. *)
Propose(n) ==
  /\ ask[n] # None
  /\ ask[n].st = "go" \/ (ask[n].st = "fix" /\ Bug = "the asked node releases before the other node has begun")
  /\ IF MayBegin(n, ask[n].att)
     THEN
        /\ Begins(n, ask[n].att)
        /\ entries' = entries \cup {[k |-> "cut", p |-> P(n), att |-> ask[n].att, by |-> n,
                                     seq |-> [l \in Members(P(n)) |-> IF ask[n].ans[l] = None THEN 0 - 1 ELSE ask[n].ans[l].seq]]}
        /\ hold' = IF Its(ask[n], n) THEN [hold EXCEPT ![n] = None] ELSE hold
        /\ ask' = [ask EXCEPT ![n] = IF @.st = "fix" THEN [@ EXCEPT !.st = "behind"]
                                     ELSE IF P(n) = 1 /\ Its(@, Peer(n)) THEN [@ EXCEPT !.st = "word"] ELSE None]
     ELSE UNCHANGED entries /\ Refuse(n)
  /\ UNCHANGED <<obj, co, late, pr, making, snap, hid, own, w, rec, base, left>>

(* With the bug only. *)
Behind(n) ==
  /\ ask[n] # None /\ ask[n].st = "behind"
  /\ upto' = [upto EXCEPT ![Peer(n)][ask[n].att] = Executed]
  /\ ask' = [ask EXCEPT ![n] = None]
  /\ UNCHANGED <<obj, co, late, pr, making, snap, hold, hid, entries, own, w, rec, base, left>>

(* The outcome of an entry. One Cut marks all members of the pair, or none. A node that was restarted
   has nothing of what it had begun: then the copies are given up. *)
DecideCut(e) ==
  /\ e \in entries /\ e.k = "cut"
  /\ entries' = entries \ {e}
  /\ LET r == pr[e.p]
         ok == /\ e.att = r.att \/ (e.att < r.att /\ Bug = "a pair accepts a lower attempt")
               /\ ~r.final
               /\ r.void < e.att \/ Bug = "a voided cut is accepted"
               /\ \A l \in Members(e.p) : \/ e.seq[l] = own[l].seq \/ Bug = "ownership sequence numbers are not compared"
                                          \/ e.seq[l] < 0 \* only with the bug that takes an answer for the whole pair
               /\ \A l \in Members(e.p) : \/ snap[l][e.att] = "made"
                                          \/ snap[l][e.att] = "marked" /\ Bug = "a repeated cut begins again"
         anew == Bug = "a node begins when it applies the mark"
         mark == IF anew \/ \A n \in Nodes(e.p) : Begun(n, e.att) THEN "marked" ELSE "-"
     IN /\ snap' = [l \in LUN |-> IF ok /\ l \in Members(e.p) THEN [snap[l] EXCEPT ![e.att] = mark] ELSE snap[l]]
        /\ upto' = [n \in Node |-> IF ok /\ anew /\ P(n) = e.p /\ ~Begun(n, e.att) THEN [upto[n] EXCEPT ![e.att] = Executed] ELSE upto[n]]
  /\ UNCHANGED <<obj, co, late, pr, making, hold, hid, ask, own, w, rec, base, left>>

Word(n) ==
  /\ ask[n] # None /\ P(n) = 1
  /\ \/ ask[n].st = "word"
     \/ ask[n].st = "go" /\ Its(ask[n], Peer(n)) /\ Bug = "the other node releases before the asked node has begun"
  /\ hold' = IF Its(ask[n], Peer(n)) THEN [hold EXCEPT ![Peer(n)] = None] ELSE hold
  /\ ask' = IF ask[n].st = "word" THEN [ask EXCEPT ![n] = None] ELSE ask
  /\ UNCHANGED <<obj, co, late, pr, making, snap, upto, hid, entries, own, w, rec, base, left>>

(* The word of the asked node does not come. *)
Void(n) ==
  /\ hold[n] # None /\ hold[n].st = "fixed" /\ ask[n] = None
  /\ Bug # "a fixed hold waits for the word only"
  /\ hold' = [hold EXCEPT ![n].st = "void"]
  /\ entries' = entries \cup {[k |-> "void", p |-> P(n), att |-> hold[n].att, by |-> n]}
  /\ UNCHANGED <<obj, co, late, pr, making, snap, upto, hid, ask, own, w, rec, base, left>>

DecideVoid(e) ==
  /\ e \in entries /\ e.k = "void"
  /\ entries' = entries \ {e}
  /\ pr' = [pr EXCEPT ![e.p].void = Max(@, e.att)]
  /\ hold' = IF hold[e.by] # None /\ hold[e.by].st = "void" /\ hold[e.by].att = e.att
             THEN [hold EXCEPT ![e.by].st = "over"] ELSE hold
  /\ UNCHANGED <<obj, co, late, making, snap, upto, hid, ask, own, w, rec, base, left>>

Voided(n) ==
  /\ hold[n] # None /\ hold[n].st = "over"
  /\ hold' = [hold EXCEPT ![n] = None]
  /\ UNCHANGED <<obj, co, late, pr, making, snap, upto, hid, ask, entries, own, w, rec, base, left>>

Seal(p, a) ==
  /\ Seals /\ Cut(p, a) /\ ~Sealed(p, a)
  /\ snap' = [l \in LUN |-> IF l \in Members(p) THEN [snap[l] EXCEPT ![a] = "sealed"] ELSE snap[l]]
  /\ UNCHANGED <<obj, co, late, pr, making, upto, hold, hid, ask, entries, own, w, rec, base, left>>

(* What the nodes of a pair do by themselves. *)
Local(p) ==
  \/ \E n \in Nodes(p) : Drained(n) \/ FixOther(n) \/ Propose(n) \/ Behind(n) \/ Word(n) \/ Void(n) \/ Voided(n)
  \/ \E e \in entries : e.p = p /\ (DecideCut(e) \/ DecideVoid(e))

-----------------------------------------------------------------------------
(* Faults. *)

Unsealed(l) == {a \in Attempt : snap[l][a] = "marked"}
Without(l) == [a \in Attempt |-> IF a \in Unsealed(l) THEN "-" ELSE snap[l][a]]

(* Where nothing of a cut is under way, a fault changes nothing of it. *)
Busy(p) == (\E e \in entries : e.p = p) \/ \E n \in Nodes(p) : hold[n] # None \/ ask[n] # None

(* A copy that is not sealed is removed by its pair: no space, or both nodes were restarted. *)
Lose(l) ==
  /\ May("lost") /\ Unsealed(l) # {}
  /\ snap' = [snap EXCEPT ![l] = Without(l)]
  /\ Fault("lost")
  /\ UNCHANGED <<obj, co, late, pr, making, upto, hold, hid, ask, entries, own, w, rec, base>>

(* A node is restarted, and has nothing of what it had begun. In pair 1 the peer has the log, takes
   over, and gives the node what it has marked; in pair 2 the owner stays, and copies that are not
   sealed are lost. A write that was at work there was executed or not. *)
Crash(n) ==
  /\ May("fails") /\ Busy(P(n))
  /\ Fault("fails")
  /\ hold' = [hold EXCEPT ![n] = None] /\ ask' = [ask EXCEPT ![n] = None]
  /\ LET marked(a) == \A l \in Members(P(n)) : snap[l][a] \in {"marked", "sealed"}
         given(a) == IF P(n) = 1 /\ marked(a) THEN upto[Peer(n)][a] ELSE 0 - 1
     IN /\ upto' = [upto EXCEPT ![n] = [a \in Attempt |-> given(a)]]
        /\ IF P(n) = 1
           THEN /\ own' = [l \in LUN |-> IF own[l].n = n THEN [n |-> Peer(n), seq |-> own[l].seq + 1] ELSE own[l]]
                /\ UNCHANGED snap
           ELSE /\ snap' = [snap EXCEPT !["z"] = Without("z")]
                /\ UNCHANGED own
  /\ IF w.st = "started" /\ own[w.l].n = n
     THEN \/ w' = [w EXCEPT !.st = "done", !.l = "x"] /\ rec' = [rec EXCEPT ![w.k] = PairOf(w.l)]
          \/ w' = [w EXCEPT !.st = "idle", !.l = "x"] /\ UNCHANGED rec
     ELSE UNCHANGED <<w, rec>>
  /\ UNCHANGED <<obj, co, late, pr, making, hid, entries, base>>

(* A planned transfer; a hold that is not fixed does not bar it, so that less is assumed than R10
   gives. *)
Move(l) ==
  /\ May("fails") /\ l # "z" /\ Busy(1) /\ ~(w.st = "started" /\ w.l = l)
  /\ LET n == own[l].n IN
     /\ hold[n] # None => hold[n].st \in {"wait", "held"}
     /\ hold' = IF hold[n] = None THEN hold ELSE [hold EXCEPT ![n].luns = @ \ {l}]
     /\ own' = [own EXCEPT ![l] = [n |-> Peer(n), seq |-> @.seq + 1]]
  /\ Fault("fails")
  /\ UNCHANGED <<obj, co, late, pr, making, snap, upto, hid, ask, entries, w, rec, base>>
=============================================================================
