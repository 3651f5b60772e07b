package bench;

import java.util.Map;
import java.util.TreeMap;

/** The key=value arguments of a run. */
final class Arguments {
    private final TreeMap<String, String> given;

    private Arguments(TreeMap<String, String> given) {
        this.given = given;
    }

    static Arguments of(String[] words, int from) {
        TreeMap<String, String> given = new TreeMap<>();
        for (int i = from; i < words.length; i++) {
            int cut = words[i].indexOf('=');
            if (cut < 1) {
                throw new IllegalArgumentException("not key=value: " + words[i]);
            }
            given.put(words[i].substring(0, cut), words[i].substring(cut + 1));
        }
        return new Arguments(given);
    }

    Map<String, String> all() {
        return given;
    }

    boolean has(String key) {
        return given.containsKey(key);
    }

    String text(String key, String otherwise) {
        return given.getOrDefault(key, otherwise);
    }

    long number(String key, long otherwise) {
        return has(key) ? Long.parseLong(given.get(key)) : otherwise;
    }

    boolean flag(String key, boolean otherwise) {
        return has(key) ? Boolean.parseBoolean(given.get(key)) : otherwise;
    }
}
