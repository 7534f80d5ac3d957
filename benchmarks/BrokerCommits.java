import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * How fast a broker takes commits and answers fetches of Kafka's own client, as benchmarks/coordinator.py does it with
 * ours: each writer has a group and a consumer of its own, commits all partitions of a topic at once, and waits for the
 * answer before its next commit.
 *
 * Arguments: address, partitions of each commit, writers together, seconds of each kind of writing, fetches. Prints a
 * line for each commit and fetch that is measured: what it was, a tab, the nanoseconds it took.
 */
public class BrokerCommits {
    private static final String TOPIC = "topic";
    private static final double WARM_UP_SECONDS = 5;
    private static final int WARM_UP_FETCHES = 5_000;

    private final String address;
    private final int partitions;

    BrokerCommits(String address, int partitions) {
        this.address = address;
        this.partitions = partitions;
    }

    public static void main(String[] arguments) throws Exception {
        BrokerCommits benchmark = new BrokerCommits(arguments[0], Integer.parseInt(arguments[1]));
        int together = Integer.parseInt(arguments[2]);
        double seconds = Double.parseDouble(arguments[3]);
        int fetches = Integer.parseInt(arguments[4]);
        benchmark.createTopic();
        benchmark.write(together, WARM_UP_SECONDS);
        print("one", benchmark.write(1, seconds));
        print("together", benchmark.write(together, seconds));
        benchmark.fetch(WARM_UP_FETCHES);
        print("fetch", benchmark.fetch(fetches));
    }

    private static void print(String what, List<Long> nanoseconds) {
        StringBuilder lines = new StringBuilder();
        nanoseconds.forEach(each -> lines.append(what).append('\t').append(each).append('\n'));
        System.out.print(lines);
    }

    private void createTopic() throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            admin.createTopics(List.of(new NewTopic(TOPIC, partitions, (short) 1))).all().get();
        }
    }

    private KafkaConsumer<String, String> consumer(String group) {
        Map<String, Object> settings = Map.of("bootstrap.servers", address, "group.id", group, "enable.auto.commit", false);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private Map<TopicPartition, OffsetAndMetadata> offsets(long offset) {
        return IntStream.range(0, partitions)
            .boxed()
            .collect(Collectors.toMap(each -> new TopicPartition(TOPIC, each), each -> new OffsetAndMetadata(offset)));
    }

    private List<Long> write(int writers, double seconds) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(writers);
        List<Callable<List<Long>>> tasks = new ArrayList<>();
        for (int writer = 0; writer < writers; writer++) {
            String group = "writer-" + writers + "-" + writer;
            tasks.add(() -> commit(group, seconds));
        }
        List<Long> taken = new ArrayList<>();
        for (Future<List<Long>> each : threads.invokeAll(tasks)) {
            taken.addAll(each.get());
        }
        threads.shutdown();
        return taken;
    }

    private List<Long> commit(String group, double seconds) {
        List<Long> taken = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(group)) {
            consumer.commitSync(offsets(0)); // finds the coordinator
            long end = System.nanoTime() + (long) (seconds * TimeUnit.SECONDS.toNanos(1));
            long offset = 0;
            long begun;
            while ((begun = System.nanoTime()) < end) {
                offset++;
                consumer.commitSync(offsets(offset));
                taken.add(System.nanoTime() - begun);
            }
        }
        return taken;
    }

    private List<Long> fetch(int fetches) {
        List<Long> taken = new ArrayList<>();
        Set<TopicPartition> asked = Set.of(new TopicPartition(TOPIC, 0));
        try (KafkaConsumer<String, String> consumer = consumer("fetched")) {
            consumer.commitSync(offsets(1));
            for (int number = 0; number < fetches; number++) {
                long begun = System.nanoTime();
                consumer.committed(asked, Duration.ofSeconds(10));
                taken.add(System.nanoTime() - begun);
            }
        }
        return taken;
    }
}
