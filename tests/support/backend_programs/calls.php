<?php

// Makes calls with the client for PHP. Each line of the input is a call; each line printed is its result.

require __DIR__ . '/../../../clients/php/Ingestd.php';

function show(mixed $result): void
{
    fwrite(STDOUT, json_encode($result) . "\n");
}

[, $host, $key, $secret, $folder, $given] = $argv;
$options = json_decode($given, true);
$client = new Ingestd\Client($host, $key, $secret, 'shop', ...$options, folder: $folder, onRefused: function (
    array $event,
    array $problem,
): void {
    show(['refused' => $event['messageId'] ?? null, 'code' => $problem['code']]);
});
while (($line = fgets(STDIN)) !== false) {
    $call = json_decode($line, true);
    $method = array_shift($call);
    try {
        show($client->$method(...$call));
    } catch (Ingestd\KeyRefused | Ingestd\QueueFull $error) {
        fwrite(STDERR, $error->getMessage());
        show(['error' => substr(strrchr($error::class, '\\'), 1)]);
    } catch (RuntimeException) {
        show(['error' => 'disk']);
    }
}
