package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// sender posts bodies over one connection and wants 200 for each.
type sender interface {
	post(body []byte, signature string) error
	close()
}

// client is a sender made of Go's HTTP client.
type client struct {
	url  string
	http *http.Client
}

func clientSender(address string) (sender, error) {
	return &client{url: "http://" + address + "/hooks/x", http: &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}}, nil
}

func (c *client) post(body []byte, signature string) error {
	req, err := http.NewRequest(http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Hub-Signature-256", signature)
	res, err := c.http.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %s", res.Status)
	}
	return nil
}

func (c *client) close() { c.http.CloseIdleConnections() }

// socket is a sender that writes bytes and looks at no more of an answer than
// its status and length.
type socket struct {
	conn    net.Conn
	in      *bufio.Reader
	request bytes.Buffer
}

func socketSender(address string) (sender, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &socket{conn: conn, in: bufio.NewReaderSize(conn, 4096)}, nil
}

func (s *socket) post(body []byte, signature string) error {
	s.request.Reset()
	fmt.Fprintf(&s.request, "POST /hooks/x HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nX-Hub-Signature-256: %s\r\nContent-Length: %d\r\n\r\n",
		signature, len(body))
	s.request.Write(body)
	if _, err := s.conn.Write(s.request.Bytes()); err != nil {
		return err
	}
	return s.readAnswer()
}

func (s *socket) close() { _ = s.conn.Close() } // nothing is left unsent

// readAnswer reads one response with a Content-Length.
func (s *socket) readAnswer() error {
	status, err := s.in.ReadString('\n')
	if err != nil {
		return err
	}
	length := -1
	for {
		header, err := s.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(header) <= 2 {
			break
		}
		if value, found := bytes.CutPrefix(header, []byte("Content-Length: ")); found {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return errors.New("an answer without Content-Length")
	}
	if _, err := s.in.Discard(length); err != nil {
		return err
	}
	if !strings.HasPrefix(status, "HTTP/1.1 200") {
		return fmt.Errorf("answer %s", strings.TrimSpace(status))
	}
	return nil
}
