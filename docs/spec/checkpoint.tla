----------------------------- MODULE checkpoint -----------------------------
(***************************************************************************)
(* How a job of several queries, linked by exchanges, is cut at one        *)
(* moment, and how it continues from a cut: entries, barriers, seals,      *)
(* holds, releases and restores; with restores that are interrupted, and   *)
(* drivers that continue after a restore has begun.                        *)
(*                                                                         *)
(* commit.tla describes how one epoch gets into one target: starts, claims *)
(* and replays. Here an epoch is planned and written in one step.          *)
(* README.md in this folder says how to read and run both.                 *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Shape,          \* the job: "chain", "diamond" or "join", see below
    Rows,           \* each root reads the rows 1..Rows, at most one in an epoch
    Live,           \* roots whose input does not end after them
    MaxCheckpoints, \* how many checkpoints are triggered, one at a time
    Late,           \* whether commits/N may be later than the commit of the sink
    Modes,          \* of them: "aligned", "unaligned"
    Aborts,         \* whether they may be aborted
    Releases,       \* whether exchanges release what nobody needs
    MaxRestores,    \* how often the user restores one of them
    LeftOut         \* rules that are not followed; {} is the protocol

\* What each query reads. An exchange has the name of the query that writes it; the last query writes the target.
Readers ==
    CASE Shape = "chain"   -> [a |-> {}, d |-> {"a"}]
      [] Shape = "diamond" -> [a |-> {}, b |-> {"a"}, d |-> {"a", "b"}]
      [] Shape = "join"    -> [a |-> {}, c |-> {}, d |-> {"a", "c"}]

Queries    == DOMAIN Readers
Reads(q)   == Readers[q]
Exchanges  == Queries \ {"d"}
Sources(q) == IF Reads(q) = {} THEN {"in"} ELSE Reads(q)
Ids        == 1..MaxCheckpoints
Content    == Reads("d") \X (1..Rows)       \* what reaches the target: a row, and the exchange that it came from

Rule(name) == name \notin LeftOut
Max(a, b)  == IF a > b THEN a ELSE b
Least(set) == CHOOSE one \in set : \A other \in set : one <= other
Most(set)  == CHOOSE one \in set : \A other \in set : one >= other

VARIABLES
    query,          \* per query: Spark's checkpoint
    log,            \* per exchange: its entries
    released,       \* per exchange: entries up to here have lost their rows
    looked,         \* per query: the newest commits/N that a release has relied on
    target,
    zombies,        \* commits that drivers from before a restore may still attempt
    checkpoints,    \* per id: its rows in the ledger
    restore,        \* the restore that is under way, as its rows in the ledger say
    lineage,        \* of the job
    restores        \* how many there were

vars == <<query, log, released, looked, target, zombies, checkpoints, restore, lineage, restores>>

\* What an epoch's offsets say: of each source how far it is (of an exchange: entries), and the barrier that it has
\* stamped; and whether this is the end: the final checkpoint counts as an epoch here, and its seal as that epoch's entry.
Nowhere(q) == [
    at    |-> [s \in Sources(q) |-> 0],
    stamp |-> [s \in Sources(q) |-> 0],
    end   |-> FALSE]

NoQuery == [
    plan |-> <<>>,          \* offsets/N, from 1; the last one is written to exchange or target
    done |-> 0]             \* the newest commits/N: Spark is a little later than the sink

NoCheckpoint == [
    status  |-> "none",     \* none, triggered (until it has a cut), cut, completed, aborted
    mode    |-> "aligned",
    lineage |-> 0,
    cut     |-> <<>>,       \* per query: its offsets up to the cut, as they are pinned
    rows    |-> <<>>]       \* the target's version that belongs to the cut

NoRestore == [of |-> 0, step |-> "none"]

Init ==
    /\ query = [q \in Queries |-> NoQuery]
    /\ log = [e \in Exchanges |-> <<>>]
    /\ released = [e \in Exchanges |-> 0]
    /\ looked = [q \in Queries |-> 0]
    /\ target = [
        rows   |-> <<>>,    \* what its epochs have added; a rollback takes the newest away
        epochs |-> {}]      \* (lineage, epoch) that it has recorded, which a rollback does not take away
    /\ zombies = {}
    /\ checkpoints = [k \in Ids |-> NoCheckpoint]
    /\ restore = NoRestore
    /\ lineage = 1
    /\ restores = 0

Running     == restore.step = "none"
Active(k)   == k \in Ids /\ checkpoints[k].status = "triggered"
UnderWay(k) == checkpoints[k].status \in {"triggered", "cut"}

-----------------------------------------------------------------------------
(* The log of an exchange: epochs, the seal, and cuts. A position is a number of entries; entries never move. *)

\* A cut begins a lineage: it continues `parent`, up to and including an epoch of the producer.
RECURSIVE Belongs(_, _, _)
Belongs(e, entry, l) ==
    \/ entry.lineage = l
    \/ \E j \in DOMAIN log[e] :
        /\ log[e][j].kind = "cut" /\ log[e][j].lineage = l
        /\ entry.epoch <= log[e][j].epoch
        /\ Belongs(e, entry, log[e][j].parent)

\* Whether the queries of a lineage read an entry.
Visible(e, i, l) ==
    /\ log[e][i].kind # "cut"
    /\ CASE ~Rule("cut") -> TRUE
         [] ~Rule("ancestry") ->    \* what is before a cut, and later than its epoch, is gone
                \A j \in (i + 1)..Len(log[e]) : log[e][j].kind = "cut" => log[e][i].epoch <= log[e][j].epoch
         [] OTHER -> Belongs(e, log[e][i], l)

Entries(e, from, to) == {i \in (from + 1)..to : Visible(e, i, lineage)}

\* The rows that are still there.
RowsIn(e, from, to) == UNION {log[e][i].rows : i \in Entries(e, Max(from, released[e]), to)}

Sealed(e, at) == \E i \in Entries(e, 0, at) : log[e][i].kind = "seal"

-----------------------------------------------------------------------------
(* Epochs. *)

Planned(q)   == Len(query[q].plan)
Offset(q, n) == IF n = 0 THEN Nowhere(q) ELSE query[q].plan[n]
Newest(q)    == Offset(q, Planned(q))

\* A source that is read to its end.
Ended(o, s) == IF s = "in" THEN o.at[s] = Rows ELSE Sealed(s, o.at[s])

\* What is behind it counts as having delivered every barrier.
Over(o, s) == IF Rule("read to its end") THEN Ended(o, s) ELSE s # "in" /\ Sealed(s, Len(log[s]))

\* Whether a source has all that belongs to the time before barrier k.
Delivers(o, s, k) ==
    \/ o.stamp[s] >= k
    \/ s # "in" /\ Rule("a seal counts") /\ Over(o, s)

\* Whether an epoch does: each of its sources, or it is the end.
Carries(q, o, k) ==
    \/ o.end
    \/ /\ \E s \in Sources(q) : o.stamp[s] >= k
       /\ \A s \in Sources(q) : Delivers(o, s, k)

\* A source that has met a barrier waits until the offsets have it for the others too; unless the checkpoint is over.
Waits(q, o, s) ==
    /\ Rule("wait at the barrier")
    /\ Active(o.stamp[s]) \/ (o.stamp[s] > 0 /\ ~Rule("an abort is heard"))
    /\ \E other \in Sources(q) : ~Delivers(o, other, o.stamp[s])

\* How far an exchange source may go, at most to the next barrier; and which barrier it has then.
Moves(q, o, e) ==
    LET next     == Entries(e, o.at[e], Len(log[e]))
        barriers == {i \in next : log[e][i].barrier > 0}
    IN {<<i, Max(o.stamp[e], log[e][i].barrier)>> :
            i \in IF Waits(q, o, e) THEN {} ELSE {i \in next : \A other \in barriers : i <= other}}

\* A root stamps what is triggered; or it has looked before that.
RootMoves(o) ==
    {<<at, stamp>> : at \in {at \in {o.at["in"], o.at["in"] + 1} : at <= Rows},
                     stamp \in {o.stamp["in"]} \cup {k \in Ids : Active(k)}}

\* Offsets that may follow.
Following(q) ==
    LET o        == Newest(q)
        moves(s) == {<<o.at[s], o.stamp[s]>>} \cup IF s = "in" THEN RootMoves(o) ELSE Moves(q, o, s)
        chosen   == {m \in [Sources(q) -> UNION {moves(s) : s \in Sources(q)}] : \A s \in Sources(q) : m[s] \in moves(s)}
        read     == {[at |-> [s \in Sources(q) |-> m[s][1]], stamp |-> [s \in Sources(q) |-> m[s][2]], end |-> FALSE] :
                        m \in chosen}
        \* A query stamps by itself when nothing comes from those before it.
        stamped  == {[o EXCEPT !.stamp = [s \in Sources(q) |-> k]] :
                        k \in {k \in Ids : Active(k) /\ \A s \in Sources(q) : Over(o, s)}}
        ended    == IF q \notin Live /\ (\A s \in Sources(q) : Ended(o, s)) THEN {[o EXCEPT !.end = TRUE]} ELSE {}
    IN IF o.end THEN {} ELSE ((read \cup stamped) \ {o}) \cup ended

\* What the next epoch commits, if it ends at o.
EntryFor(q, o) ==
    LET from == Newest(q)
        new  == {k \in Ids : Carries(q, o, k) /\ ~Carries(q, from, k)}
        rows == CASE q = "d"         -> UNION {{e} \X RowsIn(e, from.at[e], o.at[e]) : e \in Reads(q)}
                  [] Reads(q) = {}   -> (from.at["in"] + 1)..o.at["in"]
                  [] OTHER           -> UNION {RowsIn(e, from.at[e], o.at[e]) : e \in Reads(q)}
    IN [kind    |-> IF o.end THEN "seal" ELSE "epoch",
        lineage |-> lineage,
        epoch   |-> Planned(q) + 1,
        rows    |-> rows,
        barrier |-> IF o.end \/ new = {} THEN 0 ELSE Most(new)]

\* A commit of the sink. An epoch that is there is not added again; one without rows and barrier adds nothing.
Write(q, entry) ==
    LET mark  == <<entry.lineage, entry.epoch>>
        there == IF q = "d" THEN mark \in target.epochs
                 ELSE \E i \in DOMAIN log[q] : log[q][i].kind # "cut" /\ <<log[q][i].lineage, log[q][i].epoch>> = mark
        adds  == entry.rows # {} \/ (q # "d" /\ (entry.barrier > 0 \/ entry.kind = "seal"))
    IN IF there \/ ~adds THEN UNCHANGED <<log, target>>
       ELSE IF q = "d" THEN
            /\ target' = [rows   |-> Append(target.rows, [epoch |-> entry.epoch, rows |-> entry.rows]),
                          epochs |-> target.epochs \cup {mark}]
            /\ UNCHANGED log
       ELSE log' = [log EXCEPT ![q] = Append(@, entry)] /\ UNCHANGED target

\* offsets/N, and the sink's commit.
Epoch(q) ==
    /\ Running
    /\ query[q].done = Planned(q)
    /\ \E o \in Following(q) :
        /\ query' = [query EXCEPT ![q].plan = Append(@, o), ![q].done = IF Late THEN @ ELSE @ + 1]
        /\ Write(q, EntryFor(q, o))
    /\ UNCHANGED <<released, looked, zombies, checkpoints, restore, lineage, restores>>

\* commits/N
SparkCommit(q) ==
    /\ Running
    /\ query[q].done < Planned(q)
    /\ query' = [query EXCEPT ![q].done = Planned(q)]
    /\ UNCHANGED <<log, released, looked, target, zombies, checkpoints, restore, lineage, restores>>

-----------------------------------------------------------------------------
(* Checkpoints. *)

\* The cut is known; that its files are pinned takes more time. It matters only to a release.
Cut(k, cut, mode) ==
    checkpoints' = [checkpoints EXCEPT ![k] = [
        status  |-> IF Releases THEN "cut" ELSE "completed",
        mode    |-> mode,
        lineage |-> lineage,
        cut     |-> [q \in Queries |-> SubSeq(query[q].plan, 1, cut[q])],
        rows    |-> SelectSeq(target.rows, LAMBDA added : added.epoch <= cut["d"] \/ ~Rule("version"))]]

\* The coordinator reads the queries' commits/ one after the other, in any order and as late as it likes.
Looks == {look \in [Queries -> 0..Most({query[q].done : q \in Queries})] :
            \A q \in Queries : looked[q] <= look[q] /\ look[q] <= query[q].done}

\* How far a consumer may be when the producer's cut is epoch n.
Reach(e, n, l) ==
    LET beyond == {i \in DOMAIN log[e] : Visible(e, i, l) /\ log[e][i].epoch > n}
    IN IF beyond = {} THEN Len(log[e]) ELSE Least(beyond) - 1

\* Producers first: of each query the newest epoch that was seen and has read nothing beyond its producers' cuts.
UnalignedCut(look) ==
    LET cut[q \in Queries] ==
            IF ~Rule("step back") THEN look[q]
            ELSE Most({n \in 0..look[q] : \A e \in Reads(q) : Offset(q, n).at[e] <= Reach(e, cut[e], lineage)})
    IN cut

\* An unaligned checkpoint waits for nothing.
TakeUnaligned(k) ==
    /\ Running
    /\ "unaligned" \in Modes
    /\ \E look \in Looks : Cut(k, UnalignedCut(look), "unaligned")
    /\ UNCHANGED <<query, log, released, looked, target, zombies, restore, lineage, restores>>

Trigger(k) ==
    /\ Running
    /\ "aligned" \in Modes
    /\ checkpoints' = [checkpoints EXCEPT ![k].status = "triggered"]
    /\ UNCHANGED <<query, log, released, looked, target, zombies, restore, lineage, restores>>

\* One after the other, while something runs.
Take(k) ==
    /\ checkpoints[k].status = "none"
    /\ \A other \in Ids : ~UnderWay(other) /\ (other < k => checkpoints[other].status # "none")
    /\ \E q \in Queries : ~Newest(q).end
    /\ TakeUnaligned(k) \/ Trigger(k)

\* The cut of a query is its first epoch that carries the barrier.
Align(k) ==
    /\ Running
    /\ Active(k)
    /\ LET delivered(q) == {n \in 1..query[q].done : Carries(q, Offset(q, n), k)}
       IN /\ \A q \in Queries : delivered(q) # {}
          /\ Cut(k, [q \in Queries |-> Least(delivered(q))], "aligned")
    /\ UNCHANGED <<query, log, released, looked, target, zombies, restore, lineage, restores>>

Complete(k) ==
    /\ Running
    /\ checkpoints[k].status = "cut"
    /\ checkpoints' = [checkpoints EXCEPT ![k].status = "completed"]
    /\ UNCHANGED <<query, log, released, looked, target, zombies, restore, lineage, restores>>

\* An aligned checkpoint that takes too long becomes an unaligned one.
Turn(k) == Active(k) /\ TakeUnaligned(k)

Abort(k) ==
    /\ Aborts
    /\ UnderWay(k)
    /\ checkpoints' = [checkpoints EXCEPT ![k].status = "aborted"]
    /\ UNCHANGED <<query, log, released, looked, target, zombies, restore, lineage, restores>>

-----------------------------------------------------------------------------
(* Release: the rows that no query and no checkpoint needs. *)

Position(offsets, e) == IF offsets = <<>> THEN 0 ELSE offsets[Len(offsets)].at[e]
Consumers(e)         == {q \in Queries : e \in Reads(q)}

\* What lies behind the unaligned cut that could be taken now: a restore of it steps a query back to there.
Needed(e, look) ==
    LET cut == IF Rule("behind the cut") THEN UnalignedCut(look) ELSE look
    IN {Offset(q, cut[q]).at[e] : q \in Consumers(e)}

\* A cut holds what it needs from the moment that it is known.
Holds == {k \in Ids : checkpoints[k].status \in
            (IF Rule("hold") THEN {"completed"} ELSE {}) \cup (IF Rule("hold at once") THEN {"cut"} ELSE {})}

Held(e) == {Position(checkpoints[k].cut[q], e) : k \in Holds, q \in Consumers(e)}

Release ==
    /\ Releases
    /\ Running
    /\ \E look \in Looks :
        LET upto(e) == Least(Needed(e, look) \cup Held(e))
        IN /\ released' = [e \in Exchanges |-> Max(released[e], upto(e))]
           /\ released' # released
           \* Only a cut that is still to be taken must not be older.
           /\ looked' = IF checkpoints[MaxCheckpoints].status \in {"none", "triggered"} THEN look ELSE looked
    /\ UNCHANGED <<query, log, target, zombies, checkpoints, restore, lineage, restores>>

-----------------------------------------------------------------------------
(* Restore: steps, each of which may have been taken before a crash and is taken again after it. *)

\* The user stops the job and restores, also instead of a restore that was interrupted. A driver may be in the middle of
\* an epoch, and live on.
Begin(k) ==
    /\ restores < MaxRestores
    /\ checkpoints[k].status = "completed"
    /\ restore' = [of |-> k, step |-> "claim"]
    /\ restores' = restores + 1
    /\ \E pending \in SUBSET (IF Running THEN {q \in Queries : query[q].done = Planned(q)} ELSE {}) :
        \E o \in [pending -> UNION {Following(q) : q \in pending}] :
            /\ \A q \in pending : o[q] \in Following(q)
            /\ zombies' = zombies \cup {[query |-> q, entry |-> EntryFor(q, o[q])] : q \in pending}
    /\ checkpoints' = [j \in Ids |-> IF UnderWay(j) THEN [checkpoints[j] EXCEPT !.status = "aborted"] ELSE checkpoints[j]]
    /\ UNCHANGED <<query, log, released, looked, target, lineage>>

\* A driver that was frozen continues.
Wake ==
    /\ \E z \in zombies : Write(z.query, z.entry) /\ zombies' = zombies \ {z}
    /\ UNCHANGED <<query, released, looked, checkpoints, restore, lineage, restores>>

Restored    == checkpoints[restore.of]
NewLineage  == CASE ~Rule("lineage") -> lineage
                 [] ~Rule("number first") -> lineage + 1    \* taken with the last row
                 [] OTHER -> restores + 1
Then(step)  == restore' \in {restore, [restore EXCEPT !.step = step]}   \* that it was taken is recorded, or not yet

\* From here on exchanges and target refuse older drivers.
RestoreClaim ==
    /\ restore.step = "claim"
    /\ zombies' = IF Rule("claim") THEN {} ELSE zombies
    /\ Then("target")
    /\ UNCHANGED <<query, log, released, looked, target, checkpoints, lineage, restores>>

RestoreTarget ==
    /\ restore.step = "target"
    /\ target' = [target EXCEPT !.rows = Restored.rows]
    /\ Then("exchanges")
    /\ UNCHANGED <<query, log, released, looked, zombies, checkpoints, lineage, restores>>

RestoreExchanges ==
    /\ restore.step = "exchanges"
    /\ LET cut(e) == [kind |-> "cut", lineage |-> NewLineage, parent |-> Restored.lineage, epoch |-> Len(Restored.cut[e])]
       IN \E some \in SUBSET Exchanges :
            /\ log' = [e \in Exchanges |-> IF e \in some /\ \A i \in DOMAIN log[e] : log[e][i] # cut(e)
                                           THEN Append(log[e], cut(e)) ELSE log[e]]
            /\ IF some = Exchanges THEN Then("states") ELSE UNCHANGED restore
    /\ UNCHANGED <<query, released, looked, target, zombies, checkpoints, lineage, restores>>

\* The new lineage is the last row: with it the restore is complete.
RestoreStates ==
    /\ restore.step = "states"
    /\ query' = [q \in Queries |-> [plan |-> Restored.cut[q], done |-> Len(Restored.cut[q])]]
    /\ looked' = [q \in Queries |-> Len(Restored.cut[q])]
    /\ lineage' = NewLineage
    /\ restore' = NoRestore
    /\ UNCHANGED <<log, released, target, zombies, checkpoints, restores>>

Restore == RestoreClaim \/ RestoreTarget \/ RestoreExchanges \/ RestoreStates

-----------------------------------------------------------------------------

Work(q) == Epoch(q) \/ SparkCommit(q)

Next ==
    \/ \E q \in Queries : Work(q)
    \/ \E k \in Ids : Take(k) \/ Align(k) \/ Complete(k) \/ Turn(k) \/ Abort(k) \/ Begin(k)
    \/ Release \/ Restore \/ Wake

Spec == Init /\ [][Next]_vars

\* No query is neglected, nor is a restore, nor a checkpoint that can be completed.
FairSpec ==
    /\ Spec
    /\ \A q \in Queries : WF_vars(Work(q))
    /\ \A k \in Ids : WF_vars(Align(k) \/ Complete(k))
    /\ WF_vars(Restore)

-----------------------------------------------------------------------------
(* What must hold. *)

Times(c) == Cardinality({i \in DOMAIN target.rows : c \in target.rows[i].rows})

\* While a restore is under way the target may be anything.
AtMostOnce == Running => \A c \in Content : Times(c) <= 1

FinishedIsComplete == Running /\ Newest("d").end => \A c \in Content : Times(c) = 1

Retained == {k \in Ids : checkpoints[k].status = "completed"}

\* No query has read what its producers write again after a restore.
CutIsConsistent ==
    \A k \in Retained, q \in Queries : \A e \in Reads(q) :
        LET it == checkpoints[k]
        IN Position(it.cut[q], e) <= Reach(e, Len(it.cut[e]), it.lineage)

\* What is in flight between the queries of a checkpoint is there.
InFlightIsKept ==
    \A k \in Retained, q \in Queries : \A e \in Reads(q) :
        LET it == checkpoints[k]
        IN \A i \in (Position(it.cut[q], e) + 1)..Reach(e, Len(it.cut[e]), it.lineage) :
            Visible(e, i, it.lineage) /\ log[e][i].rows # {} => i > released[e]

\* An aligned checkpoint is one cut: the target has the same rows by both ways of the diamond.
AlignedIsOneCut ==
    Shape = "diamond" => \A k \in Retained : checkpoints[k].mode = "aligned" =>
        LET by(e) == {row \in 1..Rows : \E i \in DOMAIN checkpoints[k].rows : <<e, row>> \in checkpoints[k].rows[i].rows}
        IN by("a") = by("b")

\* Each row arrives, each checkpoint completes unless it is aborted, and what is bounded finishes.
CanFinish ==
    <>[](/\ \A c \in Content : Times(c) = 1
         /\ \A k \in Ids : ~UnderWay(k)
         /\ Live = {} => Newest("d").end)

=============================================================================
