// Sends the requests of a file with Go's default client.
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	client := &http.Client{Timeout: 30 * time.Second}
	file, err := os.ReadFile(os.Args[2])
	must(err)
	var together []chan string
	for _, line := range strings.Split(strings.TrimSpace(string(file)), "\n") {
		step := strings.Fields(line) // method, target, file of the body, how
		if step[3] == "together" {
			answer := make(chan string, 1)
			together = append(together, answer)
			go func() { answer <- send(client, step) }()
		} else {
			fmt.Println(send(client, step))
		}
	}
	for _, answer := range together {
		fmt.Println(<-answer)
	}
}

func send(client *http.Client, step []string) string {
	var body io.Reader
	if step[2] != "-" {
		content, err := os.ReadFile(step[2])
		must(err)
		body = bytes.NewReader(content)
		if step[3] == "chunked" {
			body = io.MultiReader(body) // of a length that is not known
		}
	}
	request, err := http.NewRequest(step[0], os.Args[1]+step[1], body)
	must(err)
	if step[3] == "expect" {
		request.Header.Set("Expect", "100-continue")
	}
	answer, err := client.Do(request)
	must(err)
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	must(err)
	return fmt.Sprintf("%d %x", answer.StatusCode, sha256.Sum256(content))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
