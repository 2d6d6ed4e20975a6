package lease

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// answer is what became of one request.
type answer struct {
	ep     *endpoint
	verb   string
	status int    // 0: there was no answer
	body   []byte // of a 200 that is no Lease, of any other status
	object *object
	after  time.Duration // Retry-After
	err    error         // of the transport, or because the answer makes no sense
}

// status is what is read of a metav1.Status.
type status struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
}

func (a *answer) state() (s status) {
	_ = json.Unmarshal(a.body, &s)
	return s
}

// missing: the API server, not something in front of it, says that the object is not there.
func (a *answer) missing() bool {
	s := a.state()
	return a.status == http.StatusNotFound && s.Kind == "Status" && s.Reason == "NotFound"
}

// text is what the server said, cut to a line.
func (a *answer) text() string {
	t := a.state().Message
	if t == "" {
		t = string(a.body)
	}
	t = strings.Join(strings.Fields(t), " ")
	if len(t) > 300 {
		t = t[:300] + "…"
	}
	return t
}

// do sends a request to one API server after the other until an answer is final: the next one when
// the last did not do or has not answered for opt.Hedge. Every request under way may still be
// carried out, so a body must be harmless when it is sent twice. All of them have ended when do
// returns.
func (c *Client) do(ctx context.Context, verb, path string, body []byte, final func(*answer) bool) (*answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	order := c.pool.order(time.Now())
	if len(order) == 0 {
		return nil, fmt.Errorf("%s %v: %w: every API server asked to wait", word(verb), c, ErrThrottled)
	}
	most := min(max(len(order)+1, 3), 5)
	answers := make(chan *answer, most+1) // and once more with a new token
	sent, running, renewed := 0, 0, false
	send := func(e *endpoint, hedged bool) {
		if hedged {
			c.metrics.hedged.WithLabelValues(word(verb)).Inc()
		}
		running++
		wg.Go(func() { answers <- c.send(ctx, e, verb, path, body) })
	}
	next := func(hedged bool) {
		if sent < most {
			send(order[sent%len(order)], hedged)
			sent++
		}
	}
	var failed []error
	next(false)
	tick := time.NewTicker(c.opt.Hedge)
	defer tick.Stop()
	for running > 0 || sent < most {
		select {
		case a := <-answers:
			running--
			if final(a) {
				return a, nil
			}
			failed = append(failed, c.failure(a))
			if ctx.Err() != nil {
				return nil, c.unanswered(verb, failed)
			}
			c.pool.demote(a.ep)
			switch {
			case a.status == http.StatusUnauthorized && !renewed: // the token may have been rotated: demote had it read again
				renewed = true
				send(a.ep, false)
			case sent < len(order):
				next(false)
				tick.Reset(c.opt.Hedge)
			} // else every server has been asked: what is left of the attempts waits for the tick
		case <-tick.C:
			if sent < most {
				if running > 0 {
					c.pool.demote(order[(sent-1)%len(order)])
				}
				next(running > 0)
			}
		case <-ctx.Done():
			if running > 0 {
				failed = append(failed, fmt.Errorf("%d of %d requests were not answered in time: %w", running, sent, ctx.Err()))
			}
			return nil, c.unanswered(verb, failed)
		}
	}
	return nil, c.unanswered(verb, failed)
}

// send makes one request at one endpoint. It is never nil.
func (c *Client) send(ctx context.Context, e *endpoint, verb, path string, body []byte) *answer {
	a := &answer{ep: e, verb: verb}
	start := time.Now()
	defer func() { c.metrics.attempt(a, ctx, time.Since(start)) }()
	rt, err := e.transport(c.pool.cfg)
	if err != nil {
		a.err = fmt.Errorf("credentials: %w", err)
		return a
	}
	req, err := http.NewRequestWithContext(ctx, verb, e.url+path, bytes.NewReader(body))
	if err != nil {
		a.err = err
		return a
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "gemel-target")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := rt.RoundTrip(req) // no client on top: a redirect is no answer
	if err != nil {
		a.err = err
		return a
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		a.err = fmt.Errorf("the response ended early: %w", err)
		return a
	case len(b) > maxAnswer:
		a.err = fmt.Errorf("the response has more than %d bytes, so the address is not that of an API server", maxAnswer)
		return a
	}
	a.status, a.body = res.StatusCode, b
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		a.after = min(time.Duration(min(s, 3600))*time.Second, maxPenalty)
	}
	if a.status == http.StatusTooManyRequests {
		e.penalize(time.Now().Add(a.after))
	}
	if (a.status == http.StatusOK || a.status == http.StatusCreated) && path == c.path() {
		if a.object, a.err = decode(b); a.err != nil {
			a.err = fmt.Errorf("the response cannot be decoded: %w", a.err)
		}
	}
	return a
}

// failure says what is wrong with an answer that is not final, and what to do.
func (c *Client) failure(a *answer) error {
	at := a.ep.url + ": "
	switch {
	case a.err != nil:
		return fmt.Errorf("%s%w", at, a.err)
	case a.status == http.StatusUnauthorized:
		return fmt.Errorf("%s%w (401): the API server does not accept the token or certificate: %s", at, ErrDenied, a.text())
	case a.status == http.StatusForbidden:
		return fmt.Errorf("%s%w (403): the Role of this target lacks the verb %q on leases.coordination.k8s.io %q in namespace %s, or a policy denies it: %s",
			at, ErrDenied, word(a.verb), c.opt.Name, c.opt.Namespace, a.text())
	case a.status == http.StatusUnprocessableEntity:
		return fmt.Errorf("%s%w (422): %s", at, ErrDenied, a.text())
	case a.status == http.StatusTooManyRequests:
		return fmt.Errorf("%s%w (429, %v): give the target's service account a FlowSchema: %s", at, ErrThrottled, a.after, a.text())
	case a.status == http.StatusNotFound:
		return fmt.Errorf("%sstatus 404 from a server that is not an API server: check the address: %s", at, a.text())
	}
	return fmt.Errorf("%s%d: %s", at, a.status, a.text())
}

// unanswered joins what went wrong in one line.
func (c *Client) unanswered(verb string, failed []error) error {
	return fmt.Errorf("%s %v: %w", word(verb), c, oneLine(failed))
}

type oneLine []error

func (l oneLine) Error() string {
	var texts []string
	for _, e := range l {
		texts = append(texts, e.Error())
	}
	return strings.Join(texts, "; ")
}

func (l oneLine) Unwrap() []error { return l }

// word is the verb as RBAC has it.
func word(verb string) string {
	if verb == http.MethodPut {
		return "update"
	}
	return "get"
}

// outcome names an answer for the metrics.
func (a *answer) outcome() string {
	var ne net.Error
	switch {
	case errors.Is(a.err, context.DeadlineExceeded), errors.As(a.err, &ne) && ne.Timeout():
		return "timeout"
	case a.err != nil && a.status == 0:
		return "unreachable"
	case a.err != nil:
		return "invalid"
	case a.status < 300:
		return "ok"
	}
	switch a.status {
	case http.StatusConflict:
		return "conflict"
	case http.StatusNotFound:
		return "not_found"
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity:
		return "denied"
	case http.StatusTooManyRequests:
		return "throttled"
	}
	return "error"
}
