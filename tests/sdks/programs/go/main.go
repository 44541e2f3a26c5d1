// Makes the calls of standard input with analytics-go. Each line is a JSON array of [method, message].
// At the end of the input it closes the client, which gives up batches that still wait to be sent again.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"gopkg.in/segmentio/analytics-go.v3"
)

var messages = map[string]func([]byte) analytics.Message{
	"track":    decode[analytics.Track],
	"page":     decode[analytics.Page],
	"screen":   decode[analytics.Screen],
	"identify": decode[analytics.Identify],
	"group":    decode[analytics.Group],
	"alias":    decode[analytics.Alias],
}

func decode[Message analytics.Message](raw []byte) analytics.Message {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber() // a number is sent with the digits that it has here
	var message Message
	check(decoder.Decode(&message))
	return message
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	client := newClient() // the lines of docs/sdks.md
	input := bufio.NewReader(os.Stdin)
	for line, err := input.ReadBytes('\n'); err == nil; line, err = input.ReadBytes('\n') {
		var calls [][2]json.RawMessage
		check(json.Unmarshal(line, &calls))
		for _, call := range calls {
			var method string
			check(json.Unmarshal(call[0], &method))
			check(client.Enqueue(messages[method](call[1])))
		}
	}
	check(client.Close())
	fmt.Println("[]") // it tells its log of failures, and not the program
}
