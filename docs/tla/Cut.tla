-------------------------------- MODULE Cut --------------------------------
(* Group snapshots: the cut attempts of coordinators over the metadata logs of two pairs, while a
   host writes record k on any member only after k-1 was acknowledged. The pairs, the host and the
   faults are in CutPair.tla. Pair 1 has two nodes, and both own members if Wide; pair 2 has one node
   that is alone, so a restart there changes no owner. Left out: how a log commits an entry (Pair.tla
   and the simulator have the record and the log), the blocks that a transfer or a copy moves, which
   are one step here, and time: a hold that is not fixed may lapse whenever it stands.

   Coordinators are not elected here: "old" and "new" both work from the start, each as slowly as it
   likes, which covers a leader that died and a leader that was deposed and continues. Each waits for
   one message at a time; a message that it gives up or repeats goes to late, and is served at any
   later time or never. A refusal is a step that is not enabled, after which a coordinator takes the
   group up again (Take), as it may at any time.

   Rules that the order of messages does not show, each with a Bug of its own:
   - A hold is known by a number of its own, which its answer and the Cut carry. The attempt does
     not suffice: a message that was repeated begins another hold of the same attempt.
   - What a node has begun is lost with its process, and the mark does not begin it anew: nothing is
     held any more by then.
   - A node cuts what it holds. One that was restarted, and is asked again, would begin late, and end
     the hold that it relies on by being refused.
   - Every member has an answer of its own. A LUN that moves between two requests is held by no node.
   - Both nodes of a pair begin while both hold. The one that was not asked releases when the asked
     one has begun, or when the log has made the cut void: then it does not matter when that one
     begins.
   - The object moves to the next attempt before anything of the last one is removed, by a
     compare-and-swap that gives an attempt to one coordinator.
   - A hold waits until no write is at work, so that both nodes of a pair have the same snapshot; the
     order of records does not need that.
   - A pair keeps the final attempt for as long as a message of a coordinator may be under way.

   Bounds. Two records suffice for a snapshot that has a record without its predecessor, and the
   second attempt shows what the first one left. Cases with records have one attempt of one
   coordinator, and a fault or two; cases with two attempts or two coordinators have no records. Wide has
   the node that is asked beside another owner. Cases large have every kind
   of fault beside two attempts or beside two owners and two records.

   Bug removes one rule at a time; "none" is the protocol. hack/model.sh checks that TLC passes "none"
   and finds a history that breaks an invariant for every other value. *)
EXTENDS CutPair

-----------------------------------------------------------------------------
(* Coordinators. *)

To(c, x) == co' = [co EXCEPT ![c] = x]
Goes(c, st) == To(c, [co[c] EXCEPT !.st = st, !.done = {}])
Did(c, p) == To(c, [co[c] EXCEPT !.done = @ \cup {p}])
Is(c, st) == co[c].st = st
Turn(c, p) == p \notin co[c].done /\ (AnyOrder \/ p = 1 \/ 1 \in co[c].done)
Kept(p) == Bug = "a pair that an earlier attempt has cut is kept" /\ \E a \in Attempt : Cut(p, a)

(* Takes the group up: after a fail-over of the coordinator, or because an attempt came to nothing. *)
Take(c) ==
  /\ obj.ph = "cut" /\ obj.att < MaxAtt /\ co[c].st # "final"
  /\ Is(c, "raise") => co[c].att # obj.att + 1
  /\ To(c, State("raise", obj.att + 1))
  /\ UNCHANGED <<obj, late, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

(* The new attempt is recorded at each pair, and the answer says what the pair has of the one
   before. *)
Raise(c, p) ==
  /\ Is(c, "raise") /\ Turn(c, p) /\ ~pr[p].final
  /\ pr[p].att <= co[c].att
  /\ pr' = IF Bug = "the new coordinator judges before it has raised the attempt" THEN pr ELSE [pr EXCEPT ![p].att = co[c].att]
  /\ To(c, [co[c] EXCEPT !.done = @ \cup {p}, !.seen = IF Cut(p, co[c].att - 1) THEN @ \cup {p} ELSE @])
  /\ UNCHANGED <<obj, late, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

(* A whole set is adopted. Otherwise the object moves on before anything is removed: from then on
   the attempt before cannot be published, and no other coordinator has this attempt. *)
Judge(c) ==
  /\ Is(c, "raise") /\ co[c].done = Pair
  /\ LET a == co[c].att
         same == obj.ph = "cut" /\ obj.att = a - 1
         blind == Bug = "an attempt is begun without a compare-and-swap" /\ obj.ph # "gone"
     IN IF co[c].seen = Pair THEN To(c, State("seal", a - 1)) /\ UNCHANGED obj
        ELSE IF same \/ blind
        THEN /\ To(c, State(IF Bug = "an attempt that failed is not ended" THEN "prepare" ELSE "clear", a))
             /\ obj' = IF same THEN [obj EXCEPT !.att = a] ELSE obj
        ELSE To(c, State("idle", 0)) /\ UNCHANGED obj
  /\ UNCHANGED <<late, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

Clear(c, p) ==
  /\ Is(c, "clear") /\ Turn(c, p)
  /\ IF co[c].done \cup {p} = Pair THEN Goes(c, "prepare") ELSE Did(c, p)
  /\ IF Kept(p) THEN UNCHANGED <<snap, upto>> ELSE ClearAt(co[c].att, p)
  /\ UNCHANGED <<obj, late, pr, making, hold, hid, ask, entries, own, w, rec, base, left>>

Prepare(c, p) ==
  /\ Is(c, "prepare") /\ Turn(c, p) /\ ~Kept(p)
  /\ Did(c, p) /\ PrepareAt(co[c].att, p)
  /\ UNCHANGED <<obj, late, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

Prepared(c) ==
  /\ Is(c, "prepare")
  /\ \A p \in Pair : Kept(p) \/ \A l \in Members(p) : snap[l][co[c].att] # "-"
  /\ Goes(c, "hold")
  /\ UNCHANGED <<obj, late, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

Hold(c, n) ==
  /\ Is(c, "hold") /\ n \notin co[c].done /\ ~Kept(P(n))
  /\ Did(c, n) /\ HoldAt(co[c].att, n)
  /\ UNCHANGED <<obj, late, pr, making, snap, upto, ask, entries, own, w, rec, left>>

(* The answer has the number of the hold, and the ownership sequence number of each LUN that it
   holds. *)
Held(c, n) ==
  /\ Is(c, "hold") /\ n \in co[c].done /\ hold[n] # None /\ hold[n].att = co[c].att /\ hold[n].st = "held"
  /\ LET new == {l \in hold[n].luns : co[c].ans[l] = None} IN
     /\ new # {}
     /\ To(c, [co[c] EXCEPT !.ans = [l \in LUN |-> IF l \in new THEN [n |-> n, id |-> hold[n].id, seq |-> own[l].seq] ELSE @[l]]])
  /\ UNCHANGED <<obj, late, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

Has(c, p) ==
  \/ Kept(p)
  \/ \A l \in Members(p) : co[c].ans[l] # None
  \/ Bug = "an answer counts for all members of its pair" /\ \E l \in Members(p) : co[c].ans[l] # None

(* Every member is held, by a hold that was answered. *)
AllHeld(c) ==
  /\ Is(c, "hold")
  /\ IF Bug = "a cut is sent before every hold was answered" THEN \E p \in Pair : Has(c, p) ELSE \A p \in Pair : Has(c, p)
  /\ Goes(c, "cut")
  /\ UNCHANGED <<obj, late, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

(* Either node that holds a member can be asked, also both. *)
AskCut(c, n) ==
  /\ Is(c, "cut") /\ Has(c, P(n)) /\ CutAt(co[c].att, n, co[c].ans)
  /\ UNCHANGED <<obj, co, late, pr, making, snap, upto, hid, entries, own, w, rec, base, left>>

(* With the bug only: the coordinator goes on with the holds of the other pair. *)
MoreHolds(c) ==
  /\ Bug = "a cut is sent before every hold was answered"
  /\ Is(c, "cut") /\ \E p \in Pair : Cut(p, co[c].att)
  /\ To(c, [co[c] EXCEPT !.st = "hold", !.done = {}])
  /\ UNCHANGED <<obj, late, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

See(c, p) ==
  /\ co[c].st \in {"cut", "seal"} /\ Turn(c, p)
  /\ \/ Sealed(p, co[c].att)
     \/ Seals /\ Cut(p, co[c].att) /\ Bug = "a group is published before all members are sealed"
     \/ Kept(p)
  /\ Did(c, p)
  /\ UNCHANGED <<obj, late, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

Newest(l) == LET s == {a \in Attempt : snap[l][a] # "-"} IN IF s = {} THEN 0 ELSE CHOOSE a \in s : \A b \in s : b <= a

Publish(c) ==
  /\ co[c].st \in {"cut", "seal"} /\ co[c].done = Pair
  /\ LET same == obj.ph = "cut" /\ obj.att = co[c].att
         blind == obj.ph # "gone" /\ Bug = "publication is not a compare-and-swap"
         kept == Bug = "a pair that an earlier attempt has cut is kept"
     IN obj' = IF same \/ blind
               THEN [att |-> co[c].att, ph |-> "ready", mem |-> [l \in LUN |-> IF kept THEN Newest(l) ELSE co[c].att]] ELSE obj
  /\ To(c, State("idle", 0))
  /\ UNCHANGED <<late, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

(* Deletion. *)
Delete ==
  /\ left.deletes /\ obj.ph \in {"cut", "ready"}
  /\ obj' = [obj EXCEPT !.ph = "deleting"] /\ left' = [left EXCEPT !.deletes = FALSE]
  /\ UNCHANGED <<co, late, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base>>

End(c) ==
  /\ obj.ph = "deleting" /\ ~Is(c, "final")
  /\ To(c, State("final", 0))
  /\ UNCHANGED <<obj, late, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

(* The final attempt: entries without an outcome are refused from here on, holds end, snapshots go. *)
Final(c, p) ==
  /\ Is(c, "final") /\ Turn(c, p)
  /\ Did(c, p)
  /\ pr' = [pr EXCEPT ![p] = [att |-> 0, final |-> TRUE, void |-> 0]]
  /\ ClearAt(MaxAtt + 1, p)
  /\ hold' = [n \in Node |-> IF P(n) = p THEN None ELSE hold[n]] /\ ask' = [n \in Node |-> IF P(n) = p THEN None ELSE ask[n]]
  /\ entries' = {e \in entries : e.p # p}
  /\ UNCHANGED <<obj, late, making, hid, own, w, rec, base, left>>

Gone(c) ==
  /\ Is(c, "final") /\ obj.ph = "deleting"
  /\ co[c].done = Pair \/ (co[c].done # {} /\ Bug = "the object goes before the final attempt is logged everywhere")
  /\ obj' = [obj EXCEPT !.ph = "gone"] /\ To(c, State("idle", 0))
  /\ UNCHANGED <<late, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

Forget(p) ==
  /\ Bug = "a pair forgets the final attempt" /\ obj.ph = "gone" /\ pr[p].final
  /\ pr' = [pr EXCEPT ![p].final = FALSE]
  /\ UNCHANGED <<obj, co, late, making, snap, upto, hold, hid, ask, entries, own, w, rec, base, left>>

(* A message that its coordinator gives up, or sends twice. *)
Sends(c) ==
  CASE Is(c, "prepare") -> {[k |-> "prepare", att |-> co[c].att, p |-> p] : p \in Pair}
    [] Is(c, "hold") -> {[k |-> "hold", att |-> co[c].att, n |-> n] : n \in Node}
    [] Is(c, "cut") -> {[k |-> "cut", att |-> co[c].att, n |-> n, ans |-> co[c].ans] : n \in {q \in Node : Has(c, P(q))}}
    [] Is(c, "clear") -> {[k |-> "clear", att |-> co[c].att, p |-> p] : p \in Pair}
    [] OTHER -> {}

Send(c) ==
  /\ May("late") /\ Fault("late")
  /\ \E m \in Sends(c) : late' = late \cup {m}
  /\ UNCHANGED <<obj, co, pr, making, snap, upto, hold, hid, ask, entries, own, w, rec, base>>

Land(m) ==
  /\ late' = late \ {m}
  /\ \/ m.k = "prepare" /\ PrepareAt(m.att, m.p) /\ UNCHANGED <<snap, upto, hold, hid, ask, base>>
     \/ m.k = "hold" /\ HoldAt(m.att, m.n) /\ UNCHANGED <<pr, making, snap, upto, ask>>
     \/ m.k = "cut" /\ CutAt(m.att, m.n, m.ans) /\ UNCHANGED <<pr, making, snap, upto, hid, base>>
     \/ m.k = "clear" /\ ClearAt(m.att, m.p) /\ UNCHANGED <<pr, making, hold, hid, ask, base>>
  /\ UNCHANGED <<obj, co, entries, own, w, rec, left>>

Next ==
  \/ Execute \/ Acknowledge \/ Delete
  \/ \E l \in LUN : Start(l) \/ Lose(l) \/ Move(l)
  \/ \E n \in Node : Lapse(n) \/ Crash(n)
  \/ \E p \in Pair : Local(p) \/ Forget(p) \/ \E a \in Attempt : Make(p, a) \/ Seal(p, a)
  \/ \E m \in late : Land(m)
  \/ \E c \in Coord : \/ Take(c) \/ Judge(c) \/ Prepared(c) \/ AllHeld(c) \/ MoreHolds(c) \/ Publish(c)
                      \/ End(c) \/ Gone(c) \/ Send(c)
                      \/ \E p \in Pair : Raise(c, p) \/ Clear(c, p) \/ Prepare(c, p) \/ See(c, p) \/ Final(c, p)
                      \/ \E n \in Node : Hold(c, n) \/ Held(c, n) \/ AskCut(c, n)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Record k is in the set that attempt a has made, whichever node's copy of its LUN is read. *)
Records(a, node) == {k \in 1..MaxWrites : /\ k < w.k \/ (k = w.k /\ w.st = "done")
                                          /\ k <= upto[node[rec[k]]][a]}
Runs(c) == co[c].st \in {"clear", "prepare", "hold", "cut"}
Whole(a) == \A p \in Pair : Cut(p, a)

(* A set that is whole, which any coordinator may adopt and publish, is a prefix of the order of
   acknowledgements. *)
Prefix ==
  \A a \in Attempt : Whole(a) =>
    \A n \in Nodes(1) : LET r == Records(a, <<n, "2a">>) IN \A k \in r : k = 1 \/ k - 1 \in r

(* It has everything that was acknowledged before the first hold was requested. *)
Fresh ==
  \A a \in Attempt : Whole(a) =>
    \A n \in Nodes(1) : LET r == Records(a, <<n, "2a">>) IN 1..base[a] \subseteq r

(* Both nodes of pair 1 have the same snapshot. For this, not for the order, a hold waits until no
   write is at work. Checked with one record, so that cases with two records show what breaks the
   order. *)
Alike == MaxWrites = 1 => \A a \in Attempt : Whole(a) => Records(a, <<"1a", "2a">>) = Records(a, <<"1b", "2a">>)

(* An attempt is the work of one coordinator: two would mix their holds, and mark anew what one of
   them has lost. *)
OneRuns == \A c, d \in Coord : c # d /\ co[c].att = co[d].att => ~(Runs(c) /\ Runs(d))

(* What is published is there, sealed, and of one attempt. *)
Published == obj.ph = "ready" => \A l \in LUN : obj.mem[l] = obj.att /\ snap[l][obj.att] = "sealed"

(* Nothing else of the group is left beside it, and nothing at all when the object is gone. *)
NoRest == obj.ph = "ready" => \A l \in LUN : \A a \in Attempt : a # obj.att => snap[l][a] = "-"
NoOrphan == obj.ph = "gone" => \A l \in LUN : \A a \in Attempt : snap[l][a] = "-"

(* A hold that is not fixed lapses. A fixed hold stands only while the nodes of its pair have a step
   of their own to take, and these steps come to an end: each takes a request, a hold, an entry
   or a mark further. *)
HoldEnds == \A n \in Node : hold[n] # None /\ hold[n].st \notin {"wait", "held"} => ENABLED Local(P(n))
=============================================================================
