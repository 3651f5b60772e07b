package bench;

import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;

/** What the tasks tell the measuring thread; the cluster is in the same JVM, so statics do. */
final class Probe {
    /** A moment in the life of a subtask; `value` is milliseconds since 1970, or a count. */
    record Mark(String event, int subtask, int attempt, long value) {}

    static final Queue<Mark> MARKS = new ConcurrentLinkedQueue<>();
    static final AtomicLong GENERATED_BOUNDED = new AtomicLong();
    static final AtomicLong GENERATED_RATE = new AtomicLong();
    static final AtomicLong EMITTED = new AtomicLong();
    static final AtomicLong PROCESSED = new AtomicLong();
    static final AtomicLong FIRST_PROCESSED_MS = new AtomicLong();

    /** Asks subtask 0 of the counting function to fail at its next row. */
    static volatile boolean failNow;

    static final AtomicLong FAILED_NS = new AtomicLong();
    static final Map<Integer, Long> OPENED_AFTER_NS = new ConcurrentHashMap<>();
    static final Map<Integer, Long> FIRST_AFTER_NS = new ConcurrentHashMap<>();

    /** The last count per key, "b" before keys of the bounded source, "u" before the others. */
    static final Map<String, Long> COUNTS = new ConcurrentHashMap<>();

    private Probe() {}

    static long now() {
        return System.currentTimeMillis();
    }

    static long latest(String event) {
        return MARKS.stream().filter(mark -> mark.event().equals(event)).mapToLong(Mark::value).max().orElse(0);
    }

    static long earliest(String event) {
        return MARKS.stream().filter(mark -> mark.event().equals(event)).mapToLong(Mark::value).min().orElse(0);
    }

    static long countOf(String prefix) {
        return COUNTS.entrySet().stream()
                .filter(entry -> entry.getKey().startsWith(prefix))
                .mapToLong(Map.Entry::getValue)
                .sum();
    }
}
