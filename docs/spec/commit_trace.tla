---------------------------- MODULE commit_trace ----------------------------
(***************************************************************************)
(* Does the model allow what a job has left behind? The job's logs are in  *)
(* the module TraceData, which tests/spec/traces.py writes. Each has an    *)
(* order; between them there is none, and no clock is needed: a behaviour  *)
(* of the model is looked for that leaves the same logs.                   *)
(*                                                                         *)
(* A behaviour that is found breaks the invariant NotAllowed. If there is  *)
(* none, the last line that TLC prints says how far the logs can be        *)
(* followed.                                                               *)
(***************************************************************************)
EXTENDS commit, TraceData, TLC
\* Jobs:    <<[number]>>                               starts, from the ledger
\* Versions:  <<[version, kind, start, epoch, rows]>>    its log: "claim", "epoch", "other"
\* Commits: <<[epoch, upto]>>                          Spark's epochs, with the position where they end
\* Finals:  <<[start, epoch]>>                         final checkpoints, from the ledger
\* Totals:  <<rows>>                                   rows up to position 0, 1, ...

VARIABLES followed, finals      \* how much of Versions and of Finals has been followed

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

TraceInit == Init /\ followed = 0 /\ finals = 0

TraceNext ==
    \/ \E d \in Starts : TraceFinish(d)
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

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, followed, finals>>

\* Everything has been followed, and the job has finished.
Allowed ==
    /\ Written
    /\ used.starts = Len(Jobs)
    /\ finals = Len(Finals)
    /\ state[1].of[Name].final
    /\ state[1].of[Name].done = Len(Commits)

NotAllowed == ~Allowed

\* Says how far it has come; always true.
Progress == PrintT(<<"followed", used.starts, followed, state[1].of[Name].done, finals>>)
=============================================================================
