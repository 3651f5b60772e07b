------------------------------- MODULE commit -------------------------------
(***************************************************************************)
(* How the epochs of one query get into one target exactly once, and when  *)
(* the query is FINISHED: starts, claims, epochs, replays, flags and the   *)
(* final checkpoint; with crashes, drivers that continue after their       *)
(* successor has started, and copies of the state directory.               *)
(*                                                                         *)
(* README.md in this folder says how to read and run it.                   *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Rows,         \* the input is the rows 1..Rows
    Batch,        \* an epoch takes 1..Batch of them, as the planner likes
    MaxStarts,    \* how often the job is started, over all copies of its state
    Calm,         \* whether the last of these starts is not disturbed any more
    Copies,       \* how many copies of the state directory there may be
    Queries,      \* names that the query may have; the source keeps its uid
    Places,       \* what the source may read from: paths, tables
    MaxChanges,   \* how often the user changes name or place between starts
    MaxResets,    \* how often the user resets the query: a new lineage
    LeftOut       \* rules that are not followed; {} is the protocol

Starts      == 1..MaxStarts       \* a start; its index is also its random start id
Directories == 1..(1 + Copies)
Last        == IF Calm THEN MaxStarts ELSE 0   \* 0: each start may be disturbed
Lineages    == 0..((1 + Copies) * Cardinality(Queries) + MaxResets + 1)
                                  \* (lineage, Spark's query id) of a query; 0: none
Content     == Places \X (1..Rows)

Rule(name)  == name \notin LeftOut
Max(a, b)   == IF a > b THEN a ELSE b
Min(a, b)   == IF a < b THEN a ELSE b

VARIABLES
    state,        \* per directory: what is on disk
    target,       \* per query: the target
    driver,       \* per start: the process, and what is only in its memory
    defined,      \* what the user's script says: [query, place]
    used          \* counters: starts, lineages, changes, resets

vars == <<state, target, driver, defined, used>>

\* Of one query in a state directory: Spark's checkpoint and the ledger's rows.
NoQuery == [
    lineage |-> 0,        \* 0: it was never started
    place   |-> 0,        \* what its source read from when it was first started
    begin   |-> 0,        \* where the first epoch begins, as its offset says
    plan    |-> <<>>,     \* offsets/N: the position at the end of epoch N, from 1
    done    |-> 0,        \* the newest commits/N; older ones are purged
    flags   |-> 0,        \* rows up to here have a finished flag
    final   |-> FALSE]    \* the final checkpoint is recorded: the query is FINISHED

NoState == [
    exists |-> FALSE,
    number |-> 0,         \* the newest incarnation in `jobs`
    starts |-> {},        \* the start ids in `jobs`
    of     |-> [q \in Queries |-> NoQuery]]

NoTarget == [
    number |-> 0,         \* the fence: the newest claim's number ...
    start  |-> 0,         \* ... and start id
    epoch  |-> [l \in Lineages |-> 0],                       \* the newest epoch of each lineage
    rows   |-> [l \in Lineages |-> [c \in Content |-> 0]]]   \* how often each row was committed

NoDriver == [
    phase  |-> "none",    \* none, taken, claimed, ready, planned, committed, ended
    dir    |-> 0,
    query  |-> "",
    place  |-> 0,
    number |-> 0,
    epoch  |-> 0,         \* the epoch that it works on
    files  |-> FALSE,     \* what its tasks have written for it, invisible to readers
    seen   |-> 0]         \* the newest commits/N that its coordinator has looked at

Init ==
    /\ state = [s \in Directories |-> IF s = 1 THEN [NoState EXCEPT !.exists = TRUE] ELSE NoState]
    /\ target = [q \in Queries |-> NoTarget]
    /\ driver = [d \in Starts |-> NoDriver]
    /\ defined = [query |-> CHOOSE q \in Queries : TRUE, place |-> CHOOSE p \in Places : TRUE]
    /\ used = [starts |-> 0, lineages |-> 0, changes |-> 0, resets |-> 0]

-----------------------------------------------------------------------------
(* What a driver sees. *)

Query(d)  == state[driver[d].dir].of[driver[d].query]
Target(d) == target[driver[d].query]
Live(d)   == driver[d].phase \notin {"none", "ended"}
Planned(o) == Len(o.plan)                               \* the newest offsets/N
Position(o) == IF o.plan = <<>> THEN 0 ELSE o.plan[Len(o.plan)]

\* Rows that need not be read: a flag counts for its own query only.
Flagged(d) ==
    IF Rule("flags by query") THEN Query(d).flags
    ELSE LET all == {state[driver[d].dir].of[q].flags : q \in Queries}
         IN CHOOSE most \in all : \A other \in all : other <= most

\* The ledger, too, refuses rows of an older incarnation.
OwnsLedger(d) == state[driver[d].dir].number = driver[d].number

\* The fence in the target: a newer claim, or another start of the same number.
FencedOff(d) ==
    \/ Target(d).number > driver[d].number
    \/ /\ Rule("start id")
       /\ Target(d).number = driver[d].number
       /\ Target(d).start # d

Become(d, phase) == driver' = [driver EXCEPT ![d].phase = phase]
Ended(d)         == [NoDriver EXCEPT !.phase = "ended", !.dir = driver[d].dir, !.query = driver[d].query]
End(d)           == driver' = [driver EXCEPT ![d] = Ended(d)]
Store(d, o)      == state' = [state EXCEPT ![driver[d].dir].of[driver[d].query] = o]

-----------------------------------------------------------------------------
(* A start: number, claim, orphans. *)

\* Compare-and-swap on `jobs`. A query that is new gets its lineage, and remembers what its source reads from.
Take(d, s) ==
    /\ d = used.starts + 1
    /\ state[s].exists
    /\ d = Last => \A e \in Starts : driver[e].phase # "taken"
    /\ LET q    == defined.query
           new  == state[s].of[q].lineage = 0
           \* The last one stands for as many starts as it takes, each refused with the same number.
           next == 1 + IF d = Last THEN Max(state[s].number, target[q].number) ELSE state[s].number
       IN /\ state' = [state EXCEPT
                ![s].number = next,
                ![s].starts = @ \cup {d},
                ![s].of[q].lineage = IF new THEN used.lineages + 1 ELSE @,
                ![s].of[q].place = IF new THEN defined.place ELSE @]
          /\ driver' = [driver EXCEPT ![d] = [NoDriver EXCEPT
                !.phase = "taken", !.dir = s, !.query = q, !.place = defined.place, !.number = next]]
          /\ used' = [used EXCEPT !.starts = d, !.lineages = IF new THEN @ + 1 ELSE @]
    /\ UNCHANGED <<target, defined>>

\* The target is further than this state: the state is an older one.
Ahead(d) == Target(d).epoch[Query(d).lineage] > Planned(Query(d))

\* The target was claimed last by a start that this state knows nothing of: a copy of it has written since.
Foreign(d) ==
    /\ Target(d).epoch[Query(d).lineage] > 0
    /\ Target(d).start \notin state[driver[d].dir].starts

Refused(d) ==
    \/ FencedOff(d)
    \/ Rule("ahead") /\ Ahead(d)
    \/ Rule("foreign") /\ Foreign(d)
    \/ Rule("place") /\ Query(d).place # driver[d].place

\* One transaction of the target.
Claim(d) ==
    /\ driver[d].phase = "taken"
    /\ ~Query(d).final
    /\ ~Refused(d)
    /\ target' = [target EXCEPT ![driver[d].query].number = driver[d].number, ![driver[d].query].start = d]
    /\ Become(d, "claimed")
    /\ UNCHANGED <<state, defined, used>>

\* Refused; or finished before, so that nothing of it is started.
NoClaim(d) ==
    /\ driver[d].phase = "taken"
    /\ Query(d).final \/ (Refused(d) /\ d # Last)
    /\ End(d)
    /\ UNCHANGED <<state, target, defined, used>>

\* What older incarnations have written and not committed is deleted; the query starts.
Begin(d) ==
    /\ driver[d].phase = "claimed"
    /\ driver' = [e \in Starts |->
            IF e = d THEN [driver[d] EXCEPT !.phase = "ready", !.seen = Query(d).done]
            ELSE IF driver[e].query = driver[d].query /\ driver[e].number < driver[d].number
            THEN [driver[e] EXCEPT !.files = FALSE]
            ELSE driver[e]]
    /\ UNCHANGED <<state, target, defined, used>>

-----------------------------------------------------------------------------
(* Epochs. *)

\* Where a new epoch begins.
From(d) == IF Query(d).plan = <<>> THEN Flagged(d) ELSE Position(Query(d))

\* Where it may end. A query that finds nothing to read has one empty epoch.
Ends(d) ==
    IF From(d) < Rows THEN (From(d) + 1)..Min(From(d) + Batch, Rows)
    ELSE IF Query(d).plan = <<>> THEN {Rows} ELSE {}

\* offsets/N, created only if it does not exist; then tasks write.
Plan(d, upto) ==
    /\ driver[d].phase = "ready"
    /\ LET o == Query(d)
       IN /\ o.done = Planned(o)
          /\ Store(d, [o EXCEPT !.plan = Append(@, upto), !.begin = IF o.plan = <<>> THEN From(d) ELSE @])
          /\ driver' = [driver EXCEPT ![d].phase = "planned", ![d].epoch = Planned(o) + 1, ![d].files = TRUE]
    /\ UNCHANGED <<target, defined, used>>

\* An epoch that is planned and not committed runs again, with the same offsets.
Replay(d) ==
    /\ driver[d].phase = "ready"
    /\ Query(d).done < Planned(Query(d))
    /\ driver' = [driver EXCEPT ![d].phase = "planned", ![d].epoch = Planned(Query(d)), ![d].files = TRUE]
    /\ UNCHANGED <<state, target, defined, used>>

\* The rows of an epoch, as offsets/N and the one before say.
Epoch(d, n) ==
    LET o == Query(d)
        from == IF n > 1 THEN o.plan[n - 1] ELSE o.begin
    IN {c \in Content : c[1] = driver[d].place /\ c[2] > from /\ c[2] <= o.plan[n]}

\* In the target's transaction: rows, and the epoch's number under its lineage.
Add(d, l) ==
    target' = [target EXCEPT
        ![driver[d].query].epoch[l] = driver[d].epoch,
        ![driver[d].query].rows[l] = [c \in Content |->
            \* The files of a fenced driver are gone: a commit of them would lose the rows.
            @[c] + IF driver[d].files /\ c \in Epoch(d, driver[d].epoch) THEN 1 ELSE 0]]

Commit(d) ==
    /\ driver[d].phase = "planned"
    /\ ~FencedOff(d)
    /\ IF Target(d).epoch[Query(d).lineage] < driver[d].epoch
       THEN Add(d, Query(d).lineage)
       ELSE UNCHANGED target           \* it is already committed
    /\ Become(d, "committed")
    /\ UNCHANGED <<state, defined, used>>

\* The writer does not know whose it is: its registration was deleted.
Nameless(d) ==
    /\ d # Last
    /\ driver[d].phase = "planned"
    /\ IF Rule("identity")
       THEN End(d) /\ UNCHANGED target
       ELSE Become(d, "committed") /\ IF Target(d).epoch[0] < driver[d].epoch THEN Add(d, 0) ELSE UNCHANGED target
    /\ UNCHANGED <<state, defined, used>>

\* commits/N
SparkCommit(d) ==
    /\ driver[d].phase = "committed"
    /\ Store(d, [Query(d) EXCEPT !.done = Max(@, driver[d].epoch)])
    /\ driver' = [driver EXCEPT ![d].phase = "ready", ![d].epoch = 0, ![d].files = FALSE]
    /\ UNCHANGED <<target, defined, used>>

\* FENCED: by the target, or by the ledger.
Fenced(d) ==
    /\ \/ driver[d].phase = "planned" /\ FencedOff(d)
       \/ driver[d].phase \in {"ready", "planned", "committed"} /\ ~OwnsLedger(d)
    /\ End(d)
    /\ UNCHANGED <<state, target, defined, used>>

-----------------------------------------------------------------------------
(* The coordinator. *)

\* It has been away for any time: Spark keeps one commits/N, and that one is taken.
Observe(d) ==
    /\ driver[d].phase \in {"ready", "planned", "committed"}
    /\ OwnsLedger(d)
    /\ driver[d].seen < Query(d).done
    /\ Rule("newest commit") \/ driver[d].seen + 1 = Query(d).done
    /\ driver' = [driver EXCEPT ![d].seen = Query(d).done]
    /\ Store(d, [Query(d) EXCEPT !.flags = Max(@, Query(d).plan[Query(d).done])])
    /\ UNCHANGED <<target, defined, used>>

\* All input is planned, and the newest planned epoch is committed: the final checkpoint, one row of the ledger.
Finish(d) ==
    /\ driver[d].phase \in {"ready", "planned"}
    /\ OwnsLedger(d)
    /\ LET o == Query(d)
       IN /\ Position(o) = Rows
          /\ driver[d].seen = o.done
          /\ Rule("newest planned") => o.done = Planned(o)
          /\ Store(d, [o EXCEPT !.final = TRUE, !.flags = Rows, !.place = driver[d].place])
    /\ End(d)
    /\ UNCHANGED <<target, defined, used>>

-----------------------------------------------------------------------------
(* What happens to a job. *)

\* kill -9. A driver that is not killed may continue at any time: it is then a zombie of later starts.
Crash(d) ==
    /\ Live(d) /\ d # Last
    /\ End(d)
    /\ UNCHANGED <<state, target, defined, used>>

\* The commit took effect, and its answer was lost: Spark runs the query again, in the same start.
Fail(d) ==
    /\ driver[d].phase = "committed" /\ d # Last
    /\ driver' = [driver EXCEPT ![d].phase = "ready", ![d].epoch = 0, ![d].files = FALSE]
    /\ UNCHANGED <<state, target, defined, used>>

\* A copy of the state directory, or a backup that is put to use later.
Copy(s) ==
    /\ ~state[s].exists
    /\ used.starts < MaxStarts
    /\ \E from \in Directories : state[from].exists /\ state' = [state EXCEPT ![s] = state[from]]
    /\ UNCHANGED <<target, driver, defined, used>>

\* The user edits the script: another name for the query, another path for the source.
Change ==
    /\ used.changes < MaxChanges
    /\ used.starts < MaxStarts
    /\ \E q \in Queries, p \in Places :
        /\ <<q, p>> # <<defined.query, defined.place>>
        /\ defined' = [query |-> q, place |-> p]
    /\ used' = [used EXCEPT !.changes = @ + 1]
    /\ UNCHANGED <<state, target, driver>>

\* A new lineage for the query of a start; what runs in its old checkpoint directory fails.
NewLineage(d) ==
    /\ state' = [state EXCEPT ![driver[d].dir].of[driver[d].query] =
            [NoQuery EXCEPT !.lineage = used.lineages + 1, !.place = driver[d].place]]
    /\ driver' = [e \in Starts |->
            IF e # d /\ Live(e) /\ driver[e].dir = driver[d].dir /\ driver[e].query = driver[d].query
            THEN Ended(e) ELSE driver[e]]
    /\ UNCHANGED <<target, defined>>

\* The user resets the query; at the latest when the last start was refused for what its state is.
Reset(d) ==
    /\ driver[d].phase = "taken" /\ OwnsLedger(d)
    /\ IF d = Last THEN Refused(d) ELSE used.resets < MaxResets
    /\ NewLineage(d)
    /\ used' = [used EXCEPT !.lineages = @ + 1, !.resets = IF d = Last THEN @ ELSE @ + 1]

-----------------------------------------------------------------------------

Step(d) ==
    \/ \E s \in Directories : Take(d, s)
    \/ Claim(d) \/ NoClaim(d) \/ (d = Last /\ Reset(d)) \/ Begin(d)
    \/ (driver[d].phase = "ready" /\ \E upto \in Ends(d) : Plan(d, upto)) \/ Replay(d) \/ Commit(d) \/ SparkCommit(d) \/ Fenced(d)
    \/ Observe(d) \/ Finish(d)

Disturb ==
    \/ \E d \in Starts : Crash(d) \/ Fail(d) \/ Nameless(d) \/ Reset(d)
    \/ \E s \in Directories : Copy(s)
    \/ Change

Next == Disturb \/ \E d \in Starts : Step(d)

Spec == Init /\ [][Next]_vars

\* The last start does its steps.
FairSpec == Spec /\ WF_vars(Step(Last))

-----------------------------------------------------------------------------
(* What must hold. *)

\* How often a row was committed in a lineage. Rows that were written without an identity count in all of them.
Times(q, l, c) == target[q].rows[l][c] + target[q].rows[0][c]

AtMostOnce ==
    \A q \in Queries, l \in Lineages \ {0}, c \in Content : Times(q, l, c) <= 1

\* FINISHED: each row of what the source reads from is committed, once.
FinishedIsComplete ==
    \A s \in Directories, q \in Queries :
        LET o == state[s].of[q]
        IN o.final => \A row \in 1..Rows : Times(q, o.lineage, <<o.place, row>>) = 1

\* Spark's log does not claim more than the target has.
CommitsAreInTarget ==
    \A s \in Directories, q \in Queries :
        LET o == state[s].of[q]
        IN \A n \in 1..o.done : \A row \in 1..o.plan[n] : row > o.begin => Times(q, o.lineage, <<o.place, row>>) = 1

\* After a claim only the start that made it commits.
OnlyTheOwnerCommits ==
    [][\A q \in Queries : target'[q].rows # target[q].rows =>
        LET d == target[q].start
        IN d # 0 /\ driver[d].phase = "planned" /\ driver'[d].phase = "committed"]_vars

\* Whatever has happened, a start that is not disturbed ends the job.
CanFinish ==
    (driver[Last].phase = "taken") ~>
        (driver[Last].dir # 0 /\ state[driver[Last].dir].of[driver[Last].query].final)

=============================================================================
