---------------------------- MODULE commit_trace ----------------------------
(***************************************************************************)
(* Does the model allow what jobs have left behind? The logs of each job   *)
(* are a record in the module TraceData, which tests/spec/traces.py        *)
(* writes. Each log has an order; between them there is none, and no clock *)
(* is needed: a behaviour of the model is looked for that leaves the same  *)
(* logs.                                                                   *)
(*                                                                         *)
(* TLC prints the number of each trace that is allowed. Of the others the  *)
(* lines that it prints say how far their logs can be followed.            *)
(***************************************************************************)
EXTENDS commit, TraceData, TLC
VARIABLES
    trace,                      \* which of Traces is followed
    followed, finals            \* how much of its Versions and of its Finals

Jobs     == Traces[trace].jobs      \* <<[number]>>: starts, from the ledger
Versions == Traces[trace].versions  \* <<[version, kind, start, epoch, rows]>>: its log: "claim", "epoch", "other"
Commits  == Traces[trace].commits   \* <<[epoch, upto]>>: Spark's epochs, with the position where they end
Finals   == Traces[trace].finals    \* <<[start, epoch]>>: final checkpoints, from the ledger
Totals   == Traces[trace].totals    \* <<rows>>: rows up to position 0, 1, ...

Name == defined.query
Written == followed = Len(Versions)
Following == Versions[followed + 1]

\* Whose steps come next: of other drivers nothing is left to be seen.
Actor(d) ==
    IF Written THEN (finals < Len(Finals) => d = Finals[finals + 1].start) ELSE d = Following.start

Seen(kind, d) ==
    /\ ~Written
    /\ Following.kind = kind
    /\ Following.start = d
    /\ Following.version = followed
    /\ followed' = followed + 1

TraceTake(d) ==
    /\ d <= Len(Jobs)
    /\ IF Written THEN TRUE ELSE Following.start >= d
    /\ Take(d, 1)
    /\ Jobs[d].number = driver'[d].number
    /\ UNCHANGED followed

TraceOther ==
    /\ ~Written /\ Following.kind = "other" /\ Following.version = followed
    /\ followed' = followed + 1
    /\ UNCHANGED vars

TracePlan(d) ==
    LET n == Planned(Query(d)) + 1
    IN /\ n <= Len(Commits)
       /\ Commits[n].epoch = n
       /\ Commits[n].upto >= From(d)
       /\ Plan(d, Commits[n].upto)
       /\ UNCHANGED followed

\* An epoch without rows, or one that is committed already, leaves nothing in the target.
TraceCommit(d) ==
    LET n    == driver[d].epoch
        o    == Query(d)
        from == IF n > 1 THEN o.plan[n - 1] ELSE o.begin
        rows == Totals[o.plan[n] + 1] - Totals[from + 1]
    IN /\ Commit(d)
       /\ IF rows = 0 \/ target' = target
          THEN UNCHANGED followed
          ELSE Seen("epoch", d) /\ Following.epoch = n /\ Following.rows = rows

TraceFinish(d) ==
    /\ Live(d)
    /\ finals < Len(Finals)
    /\ Finals[finals + 1].start = d
    /\ Finals[finals + 1].epoch = Query(d).done
    /\ Finish(d)
    /\ finals' = finals + 1
    /\ UNCHANGED followed

TraceInit == Init /\ followed = 0 /\ finals = 0 /\ trace \in 1..Len(Traces)

TraceNext ==
    /\ UNCHANGED trace
    /\ \/ \E d \in Starts : TraceFinish(d)
       \/ /\ UNCHANGED finals
          /\ \/ TraceOther
             \/ \E d \in Starts :
                   \/ TraceTake(d)
                   \/ driver[d].phase = "taken" /\ Written /\ NoClaim(d) /\ UNCHANGED followed
                   \/ /\ Live(d) /\ Actor(d)
                      /\ \/ Claim(d) /\ Seen("claim", d)
                         \/ driver[d].phase = "ready" /\ TracePlan(d)
                         \/ driver[d].phase = "planned" /\ TraceCommit(d)
                         \/ Written /\ Observe(d) /\ UNCHANGED followed     \* earlier would change nothing that is logged
                         \/ (Begin(d) \/ Replay(d) \/ SparkCommit(d) \/ Fail(d)) /\ UNCHANGED followed

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, followed, finals>>

\* Everything has been followed, and the job has finished.
Allowed ==
    /\ Written
    /\ used.starts = Len(Jobs)
    /\ finals = Len(Finals)
    /\ state[1].of[Name].final
    /\ state[1].of[Name].done = Len(Commits)

\* Says how far a trace has come; one that is allowed is followed no further. One worker keeps the numbers of those.
ASSUME \A t \in 1..Len(Traces) : TLCSet(t, FALSE)

Progress ==
    /\ PrintT(<<"followed", trace, used.starts, followed, state[1].of[Name].done, finals>>)
    /\ Allowed => PrintT(<<"allowed", trace>>) /\ TLCSet(trace, TRUE)
    /\ ~TLCGet(trace)
=============================================================================
