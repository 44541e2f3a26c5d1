<?php

// The client for backends in PHP: it signs events, keeps them on disk, and sends them until ingestd has them.

declare(strict_types=1);

namespace Ingestd;

/** As many events wait as may wait. This one is not kept. */
final class QueueFull extends \RuntimeException
{
}

/** ingestd refuses the key or its signature (401), or the key has no grant (403). The events stay in the queue. */
final class KeyRefused extends \RuntimeException
{
}

/**
 * PHP has nothing in the background. So the end of a process that has kept events sends them, and with them what earlier
 * processes have left: after the answer to the visitor, where PHP runs as FPM.
 *
 * Each event is a file. Its name begins with the time, so names sort by age. A file appears under its name when it is
 * complete, and is removed when ingestd has taken or refused the event. Several processes may share a folder.
 */
final class Client
{
    private const PATH = '/api/v1/analytics/customer-events/batch';
    private const MOST = 100; // events of a request
    private const LARGEST = 250_000; // bytes of a request: the budget of wrong signatures begins above
    private const AT_END = 5.0; // seconds in which the end of a process sends
    private const LONGEST_PAUSE = 600.0;
    private const HELD = 60; // seconds
    private const COUNTED_EVERY = 10; // seconds
    private const LISTED = 20_000; // names: a queue may be much longer
    private const LARGEST_ANSWER = 4_000_000; // bytes; ingestd's are smaller
    private const ABANDONED = 3600 * 1_000_000; // microseconds after which an unfinished file has no writer
    private const GIVEN_UP = 24 * 3600 * 1_000_000; // microseconds
    private const STRANGERS = 3;
    // User ids that many people have, as in ingestd's `[ids] unusable`. They make no visitor.
    private const NOBODY = [
        '',
        'null', 'undefined', 'none', 'nil', 'nothing', 'undef', 'nullptr', '$null', 'void(0)', '(null)', '<null>',
        '[null]', '(nil)', '<nil>', '[nil]', '(none)', '<none>', '[none]', '[undefined]', '<undefined>', ':null',
        ':nil', ':undefined', 'null,null', 'undefined,undefined', 'undefined undefined', 'null null', '%!s(<nil>)',
        '%!d(<nil>)', '%!v(<nil>)', '%!q(<nil>)', '%!x(<nil>)', '%!s(missing)', '%!d(missing)', '%!v(missing)',
        '%!q(missing)', '%!x(missing)', '<no value>', '<invalid value>', '<invalid reflect.value>', 'optional.empty',
        'optional.absent()', 'optional[null]', 'optional(nil)', 'optionalint.empty', 'optionallong.empty',
        'some(null)', 'dbnull', 'dbnull.value', 'system.dbnull', 'nonetype', 'nilclass', "<class 'nonetype'>", '<na>',
        '\\n', '#n/a', '#null!', '#ref!', '#value!', '#name?', '[object object]', '[object null]',
        '[object undefined]', '[object array]', '[object promise]', '[object function]', '[object asyncfunction]',
        '[object string]', '[object number]', '[object boolean]', '[object symbol]', '[object date]', '[object error]',
        '[object map]', '[object set]', '[object window]', '[object event]', '[object arguments]',
        '[object generator]', '[object htmlinputelement]', '[object htmldocument]', 'object', 'array', 'system.object',
        'system.object[]', 'system.string[]', 'system.collections.hashtable', 'nan', '-nan', '+nan', 'nan(ind)',
        '-nan(ind)', '1.#qnan', '-1.#ind', 'inf', '-inf', '+inf', 'infinity', '-infinity', '+infinity', '∞', '-∞',
        '1.#inf', '-1.#inf', '0', '-0', '+0', '0.0', '-0.0', '0n', '0x0', '0e0', '-1', '-1.0', 'true', 'false',
        'guest', 'anonymous', 'anon', 'anonymoususer', 'unknown', 'unauthenticated', 'not_authenticated', 'n/a', '-',
        'not set', '(not set)', 'not_set', '(not provided)', '00000000-0000-0000-0000-000000000000',
        '{00000000-0000-0000-0000-000000000000}', '(00000000-0000-0000-0000-000000000000)',
        'urn:uuid:00000000-0000-0000-0000-000000000000', '00000000000000000000000000000000',
        'ffffffff-ffff-ffff-ffff-ffffffffffff', '{ffffffff-ffff-ffff-ffff-ffffffffffff}',
        'ffffffffffffffffffffffffffffffff', '00000000000000000000000000', '000000000000000000000000',
    ];
    private const EDGE = '[\s\x1c-\x1f\x{85}\x{ad}\x{180e}\x{200b}-\x{200f}\x{2060}\x{feff}"\'`]+';

    private int $stamp = 0;
    private int $count = 0;
    private int $countedAt = 0;
    private bool $hasAdded = false;
    private int $batch = self::MOST;
    private int $failures = 0;
    private int $strangers = 0;
    private ?\CurlHandle $curl = null;
    private int $process = 0;

    /**
     * `$host` is the address of ingestd, and `$key` the id of a server key of `$tenant`. Events wait in `$folder`, at
     * most about `$most` of them. A request has `$timeout` seconds. `$onRefused` is called with an event that ingestd
     * refuses and the problem. Without it, both are logged.
     */
    public function __construct(
        private string $host,
        private string $key,
        private string $secret,
        private string $tenant,
        private string $folder = 'ingestd-queue',
        private int $most = 100_000,
        private float $timeout = 5.0,
        private ?\Closure $onRefused = null,
    ) {
        if (!preg_match('~^https?://[^/]~', $host)) {
            throw new \ValueError("$host is no address such as https://events.example.com");
        }
        if (!is_dir($folder) && !@mkdir($folder, 0700, true) && !is_dir($folder)) {
            throw new \RuntimeException("$folder cannot be made");
        }
        $this->folder = (string) realpath($folder); // the end of a process may have another working directory
    }

    /**
     * Keeps an event on disk, to be sent at the end of the process, and returns its `messageId`.
     *
     * `anonymousId` in `$fields` is the visitor, from the browser's cookie. Without it the visitor is derived from
     * `userId`, and without a user it is a new one. `timestamp` may be a DateTimeInterface. Throws QueueFull, a
     * JsonException for values that JSON cannot have, and a RuntimeException if the disk is full.
     */
    public function track(string $key, array $data = [], array $fields = []): string
    {
        return $this->add(['key' => $key, 'data' => (object) $data] + $fields);
    }

    /** Links the visitor to the user, and stores traits. Everything else is as in `track`. */
    public function identify(string|int|null $userId, array $traits = [], array $fields = []): string
    {
        return $this->add(['type' => 'identify', 'traits' => (object) $traits, 'userId' => $userId] + $fields);
    }

    /** Sends what waits. False: some of it still waits after `$timeout` seconds. Throws KeyRefused. */
    public function flush(float $timeout = 10.0): bool
    {
        $deadline = microtime(true) + $timeout;
        $newest = '';
        foreach ($this->all() as $name) {
            $newest = max($newest, $name);
        }
        for ($pause = 10_000; $this->hasUntil($newest); $pause *= 1.5) {
            if ($this->pausedUntil() <= microtime(true)) {
                $this->sendAll($deadline);
            }
            if (microtime(true) > $deadline) {
                return false;
            }
            usleep((int) min($pause, 200_000)); // a look at a long queue takes time
        }
        return true;
    }

    private function add(array $fields): string
    {
        $user = ($fields['userId'] ?? null) === null ? null : (string) $fields['userId'];
        $visitor = ($fields['anonymousId'] ?? null) ?: $this->visitorOf($user);
        unset($fields['userId']);
        $ids = ['anonymousId' => $visitor] + ($user === null ? [] : ['userId' => $user]);
        $event = $ids + $fields + ['messageId' => self::uuid(random_bytes(16), 4), 'timestamp' => new \DateTimeImmutable()];
        if ($event['timestamp'] instanceof \DateTimeInterface) {
            $event['timestamp'] = $event['timestamp']->format('Y-m-d\TH:i:s.vP');
        }
        if (($event['context'] ?? null) === []) {
            $event['context'] = (object) [];
        }
        $this->keep(json_encode($event, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES));
        return $event['messageId'];
    }

    /** As ingestd derives it for requests of Segment's SDKs, so both have one visitor of a user. */
    private function visitorOf(?string $user): string
    {
        $plain = preg_replace('/^' . self::EDGE . '|' . self::EDGE . '$/uD', '', $user ?? '');
        if (in_array(strtolower($plain ?? ''), self::NOBODY, true)) { // not UTF-8: JSON cannot have it anyway
            return self::uuid(random_bytes(16), 4);
        }
        $name = '';
        foreach (['visitor of user', $this->tenant, $user] as $part) {
            $name .= preg_match_all('/./su', $part) . ":$part"; // in characters
        }
        return self::uuid(sodium_crypto_generichash($name, '', 16), 8);
    }

    private static function uuid(string $bytes, int $version): string
    {
        $bytes[6] = chr(ord($bytes[6]) & 0x0f | $version << 4);
        $bytes[8] = chr(ord($bytes[8]) & 0x3f | 0x80);
        return vsprintf('%s%s-%s-%s-%s-%s%s%s', str_split(bin2hex($bytes), 4));
    }

    private function keep(string $event): void
    {
        $this->takeRoom();
        $this->stamp = max($this->stamp + 1, self::now());
        $path = "$this->folder/" . self::name($this->stamp) . '-' . bin2hex(random_bytes(4));
        $isWritten = @file_put_contents("$path.part", $event) === strlen($event);
        if (!$isWritten || !@rename("$path.part", "$path.json")) {
            @unlink("$path.part");
            throw new \RuntimeException("the event cannot be written into $this->folder");
        }
        if (!$this->hasAdded) {
            $this->hasAdded = true;
            register_shutdown_function($this->atEnd(...));
        }
    }

    /** Each process lives for a moment, so a file has the number of the events that wait. */
    private function takeRoom(): void
    {
        if (abs(time() - $this->countedAt) > self::COUNTED_EVERY) {
            $file = "$this->folder/count";
            clearstatcache(true, $file);
            if (abs(time() - (int) @filemtime($file)) > self::COUNTED_EVERY) {
                @file_put_contents($file, (string) iterator_count($this->all())); // fails on a full disk
            }
            $this->count = (int) @file_get_contents($file);
            $this->countedAt = time();
        }
        if ($this->count >= $this->most) {
            throw new QueueFull("$this->count events wait in $this->folder");
        }
        $this->count++;
    }

    private function atEnd(): void
    {
        $refused = "$this->folder/refused";
        $isRefused = @file_get_contents($refused) === $this->credentials()
            && abs(time() - (int) @filemtime($refused)) < self::HELD;
        if ($isRefused || $this->pausedUntil() > microtime(true)) {
            return;
        }
        if (function_exists('fastcgi_finish_request')) {
            if (session_status() === PHP_SESSION_ACTIVE) {
                session_write_close(); // else the visitor's next request would wait
            }
            fastcgi_finish_request();
        }
        try {
            $this->sendAll(microtime(true) + self::AT_END);
        } catch (KeyRefused $error) {
            error_log("ingestd: {$error->getMessage()}; events stay in the queue");
        }
    }

    private function credentials(): string
    {
        return hash('sha256', "$this->key $this->secret");
    }

    /** Sends what waits, unless another process does. */
    private function sendAll(float $deadline): void
    {
        $lock = @fopen("$this->folder/lock", 'c');
        if ($lock === false) {
            error_log("ingestd: $this->folder/lock cannot be opened, so nothing is sent");
            return;
        }
        if (!flock($lock, LOCK_EX | LOCK_NB)) {
            return;
        }
        $this->pausedUntil(); // reads the number of failures
        $names = $this->names('');
        for ($at = 0; microtime(true) < $deadline;) {
            $events = $this->take($names, $at);
            if ($events === [] && count($names) < self::LISTED) {
                break;
            }
            if ($events === []) {
                $names = $this->names((string) end($names));
                $at = 0;
                continue;
            }
            [$status, $told, $retryAfter, $failure] = $this->post('{"events":[' . implode(',', $events) . ']}');
            $results = $status === 200 ? self::resultsOf($told) : [];
            $type = $told['type'] ?? '';
            $isOwn = is_string($type) && str_starts_with($type, 'urn:ingestd:');
            if (count($results) === count($events)) {
                $isLimited = $this->settle($events, $results);
                $this->strangers = 0;
                $this->batch = min(self::MOST, $this->batch * 2);
                if ($isLimited) {
                    $this->pause('some events cannot be stored at the moment', $retryAfter);
                    return;
                }
                if ($this->failures) {
                    $this->failures = 0;
                    @unlink("$this->folder/pause");
                }
            } elseif ($isOwn && ($status === 401 || $status === 403)) {
                @file_put_contents("$this->folder/refused", $this->credentials());
                [$code, $detail] = array_map('json_encode', [$told['code'] ?? null, $told['detail'] ?? null]);
                throw new KeyRefused("$status " . trim($code, '"') . ': ' . trim($detail, '"'));
            } elseif (!self::isOfEvents($status, $isOwn)) {
                $this->pause($status ? "status $status" : $failure, $retryAfter);
                return;
            } elseif (count($events) > 1) { // to find the event at fault
                $this->batch = intdiv(count($events), 2);
                $at = array_search(array_key_first($events), $names, true);
            } elseif ($isOwn) {
                $this->refuse(array_key_first($events), current($events), $told);
            } else {
                $this->hold(array_key_first($events));
                if (++$this->strangers >= self::STRANGERS) {
                    $this->pause("status $status, not of ingestd", $retryAfter);
                    return;
                }
            }
        }
        @unlink("$this->folder/count"); // the next process counts
    }

    /** A result for each event; empty if a proxy has answered. */
    private static function resultsOf(array $told): array
    {
        $results = $told['results'] ?? null;
        if (!is_array($results) || !array_is_list($results)) {
            return [];
        }
        foreach ($results as $each) {
            if (!is_array($each) || (($each['status'] ?? null) !== 200 && !is_string($each['code'] ?? null))) {
                return [];
            }
        }
        return $results;
    }

    /** Whether other events could have another answer: the body is refused, or a firewall has answered. */
    private static function isOfEvents(int $status, bool $isOwn): bool
    {
        if ($isOwn) {
            return $status === 400 || $status === 413;
        }
        return $status === 200 || ($status >= 400 && $status < 500 && $status !== 408 && $status !== 429);
    }

    /** The oldest events for a request by their names, from `$at`, which moves behind them. */
    private function take(array $names, int &$at): array
    {
        $events = [];
        for ($size = 0; $at < count($names) && count($events) < $this->batch; $at++) {
            $event = $this->read($names[$at]);
            if ($event === null) {
                continue;
            }
            $size += strlen($event) + 1;
            if ($events !== [] && $size > self::LARGEST) {
                break;
            }
            $events[$names[$at]] = $event;
        }
        return $events;
    }

    /** Does with each event what its result says. Returns whether ingestd asks to wait. */
    private function settle(array $events, array $results): bool
    {
        $isLimited = false;
        foreach ($events as $name => $event) {
            $result = array_shift($results);
            $status = $result['status'] ?? null;
            if ($status === 200) {
                $this->remove($name);
            } elseif ($status === 429 || $status === 503) {
                $isLimited = true;
            } elseif ($status === 500 && (int) substr($name, 0, 16) > self::now() - self::GIVEN_UP) {
                $this->hold($name);
            } else {
                $this->refuse($name, $event, $result);
            }
        }
        return $isLimited;
    }

    private function refuse(string $name, string $event, array $problem): void
    {
        $this->remove($name);
        $read = json_decode($event, true) ?? []; // a power cut may have spoilt the file
        if ($this->onRefused === null) {
            $what = ($read['key'] ?? 'identify') . ' ' . ($read['messageId'] ?? '');
            error_log("ingestd refused $what: " . json_encode($problem));
            return;
        }
        try {
            ($this->onRefused)($read, $problem);
        } catch (\Throwable $error) {
            error_log("ingestd: onRefused has failed: $error");
        }
    }

    /** Status, object, Retry-After in seconds and the failure; the status 0 if there is no answer. */
    private function post(string $body): array
    {
        $url = rtrim($this->host, '/') . self::PATH;
        $headers = [
            "Authorization: Bearer $this->key", 'Content-Type: application/json',
            'x-signature: ' . hash_hmac('sha256', $body, $this->secret),
        ];
        [$status, $lines, $content, $failure] = extension_loaded('curl')
            ? $this->withCurl($url, $headers, $body)
            : $this->withStream($url, $headers, $body);
        if ($content === null) {
            return [0, [], 0.0, $failure ?: 'no answer'];
        }
        $told = json_decode($content, true);
        preg_match('/^retry-after:\s*(.*?)\s*$/im', implode("\n", $lines), $asked);
        $wait = $asked[1] ?? '';
        $date = date_create_from_format('D, d M Y H:i:s \G\M\T', $wait, timezone_open('UTC'));
        $seconds = $date ? (float) ($date->getTimestamp() - time()) : (float) (preg_match('/^\d+$/', $wait) ? $wait : 0);
        return [$status, is_array($told) ? $told : [], $seconds, ''];
    }

    private function withCurl(string $url, array $headers, string $body): array
    {
        if ($this->process !== getmypid()) { // a forked process would share the connection
            $this->curl = curl_init();
            $this->process = getmypid();
        }
        $lines = [];
        $content = '';
        curl_setopt_array($this->curl, [
            CURLOPT_URL => $url, CURLOPT_POSTFIELDS => $body, CURLOPT_HTTPHEADER => [...$headers, 'Expect:'],
            CURLOPT_NOSIGNAL => true, CURLOPT_TIMEOUT_MS => (int) ($this->timeout * 1000),
            CURLOPT_HEADERFUNCTION => function ($curl, string $line) use (&$lines): int {
                $lines[] = $line;
                return strlen($line);
            },
            CURLOPT_WRITEFUNCTION => function ($curl, string $piece) use (&$content): int {
                $content .= $piece;
                return strlen($content) > self::LARGEST_ANSWER ? -1 : strlen($piece);
            },
        ]);
        $isDone = curl_exec($this->curl);
        $status = curl_getinfo($this->curl, CURLINFO_RESPONSE_CODE);
        return [$status, $lines, $isDone ? $content : null, curl_error($this->curl)];
    }

    private function withStream(string $url, array $headers, string $body): array
    {
        $options = [
            'method' => 'POST', 'header' => [...$headers, 'Connection: close'], 'content' => $body,
            'timeout' => $this->timeout, 'ignore_errors' => true, 'follow_location' => 0, 'protocol_version' => '1.1',
        ];
        $end = microtime(true) + $this->timeout; // each piece has the timeout
        $reasons = [];
        set_error_handler(function (int $level, string $message) use (&$reasons): bool {
            return (bool) ($reasons[] = $message); // the last one is not the cause
        });
        $stream = fopen($url, 'r', false, stream_context_create(['http' => $options]));
        restore_error_handler();
        if ($stream === false) {
            return [0, [], null, implode(' ', $reasons)];
        }
        $lines = stream_get_meta_data($stream)['wrapper_data'];
        for ($content = ''; !feof($stream) && strlen($content) <= self::LARGEST_ANSWER;) {
            $piece = fread($stream, 65536);
            if ($piece === false || microtime(true) > $end) {
                return [0, [], null, 'the answer is too slow'];
            }
            $content .= $piece;
        }
        preg_match_all('~^HTTP/\S+ (\d{3})~m', implode("\n", $lines), $statuses);
        preg_match('/^content-length: *(\d+)/im', implode("\n", $lines), $length);
        if ($statuses[1] === [] || strlen($content) < (int) ($length[1] ?? 0)) {
            return [0, [], null, 'half an answer'];
        }
        return [(int) end($statuses[1]), $lines, $content, ''];
    }

    /** Begins a pause of all processes: what ingestd asks for, or else longer after each failure. */
    private function pause(string $why, float $retryAfter): void
    {
        if (!$this->failures) {
            error_log("ingestd takes no events ($why); they wait in the queue");
        }
        $this->failures++;
        $wait = $retryAfter > 0 ? $retryAfter : 0.5 * 2 ** min($this->failures - 1, 7);
        $wait = min(self::LONGEST_PAUSE, $wait) * (1 + mt_rand() / mt_getrandmax() / 2);
        @file_put_contents("$this->folder/pause", sprintf('%.3F %d', microtime(true) + $wait, $this->failures));
    }

    /** The end of the pause, in seconds since 1970. */
    private function pausedUntil(): float
    {
        [$until, $failures] = explode(' ', @file_get_contents("$this->folder/pause") ?: '0 0') + [1 => '0'];
        $this->failures = (int) $failures;
        // A time that is further ahead is a wrong clock's.
        return (float) $until < microtime(true) + 2 * self::LONGEST_PAUSE ? (float) $until : 0.0;
    }

    /** @return \Generator<string> the names of the events that wait */
    private function all(): \Generator
    {
        $folder = @opendir($this->folder);
        while ($folder !== false && ($name = readdir($folder)) !== false) {
            if (str_ends_with($name, '.json')) {
                yield $name;
            } elseif (str_ends_with($name, '.part') && $name < self::name(self::now() - self::ABANDONED)) {
                @unlink("$this->folder/$name");
            }
        }
    }

    /** The names of the oldest events behind this one, oldest first: not more than memory holds. */
    private function names(string $after): array
    {
        $names = [];
        foreach ($this->all() as $name) {
            if ($name > $after) {
                $names[] = $name;
                if (count($names) === 2 * self::LISTED) {
                    sort($names, SORT_STRING);
                    $names = array_slice($names, 0, self::LISTED);
                }
            }
        }
        sort($names, SORT_STRING);
        return array_slice($names, 0, self::LISTED);
    }

    /** Whether this event or one with a smaller name waits. */
    private function hasUntil(string $newest): bool
    {
        foreach ($this->all() as $name) {
            if ($name <= $newest) {
                return true;
            }
        }
        return false;
    }

    /** The event; null if it cannot be read, is no longer there, or is not to be sent yet. */
    private function read(string $name): ?string
    {
        $path = "$this->folder/$name";
        $file = @fopen($path, 'r');
        $event = null;
        if ($file !== false) {
            $held = fstat($file)['mtime'] - time();
            if ($held > 0 && $held <= self::HELD) { // one that is held for longer was written while the clock was wrong
                return null;
            }
            $event = @stream_get_contents($file);
        }
        clearstatcache(true, $path);
        if (($file === false && file_exists($path)) || is_dir($path)) {
            error_log("ingestd: $path cannot be read and stays in the queue");
            return null;
        }
        return $event === false ? null : $event;
    }

    private function remove(string $name): void
    {
        @unlink("$this->folder/$name");
        $this->count--;
    }

    /** No process sends the event for a minute: its file has that time. */
    private function hold(string $name): void
    {
        @touch("$this->folder/$name", time() + self::HELD);
    }

    private static function now(): int
    {
        return (int) (microtime(true) * 1_000_000);
    }

    private static function name(int $stamp): string
    {
        return sprintf('%016d', $stamp);
    }
}
