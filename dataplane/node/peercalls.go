package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Calls between the two runtimes ride on the link as requests and replies. They need no order and
// are not repeated: the one that asked asks again.

type request struct {
	Method string          `json:"method"`
	Body   json.RawMessage `json:"body"`
}

type reply struct {
	Error string          `json:"error,omitempty"`
	Code  string          `json:"code,omitempty"`
	Body  json.RawMessage `json:"body,omitempty"`
}

var errNoLink = fmt.Errorf("%w: the link is down", control.ErrUnavailable)

// call asks the peer's runtime.
func (n *Node) call(ctx context.Context, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(request{Method: method, Body: body})
	if err != nil {
		return err
	}
	id := n.waits.next.Add(1)
	c := make(chan reply, 1)
	n.waits.calls.add(id, c)
	defer n.waits.calls.take(id)
	if !n.View().Linked {
		return errNoLink
	}
	n.peer.link.Send(n.peer.linkN.Load(), &pair.Msg{Type: pair.MsgRequest, ID: id, Meta: raw})
	n.peer.link.Kick()
	select {
	case r, ok := <-c:
		if !ok {
			return errNoLink
		}
		if r.Error != "" {
			o := meta.Outcome{Code: r.Code, Error: r.Error}
			if r.Code == "" {
				return errors.New(r.Error)
			}
			switch r.Code {
			case "unavailable":
				return fmt.Errorf("%s: %w", r.Error, control.ErrUnavailable)
			case "copying":
				return fmt.Errorf("%s: %w", r.Error, control.ErrCopying)
			}
			return o.Err()
		}
		if out == nil {
			return nil
		}
		return json.Unmarshal(r.Body, out)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failCalls ends what waits on a link that is down.
func (n *Node) failCalls() { n.waits.calls.fail() }

// callTime bounds the work for one request of the peer.
const callTime = 30 * time.Second

// request serves the peer's call, or takes the answer to ours.
func (n *Node) request(link uint64, msg *pair.Msg) {
	if msg.Type == pair.MsgReply {
		c := n.waits.calls.take(msg.ID)
		var r reply
		if err := json.Unmarshal(msg.Meta, &r); err != nil {
			r.Error = "reply: " + err.Error()
		}
		if c != nil {
			c <- r
		}
		return
	}
	n.run.tasks.Go(taskApply, func() {
		ctx, cancel := context.WithTimeout(n.run.ctx, callTime)
		defer cancel()
		var req request
		var r reply
		err := json.Unmarshal(msg.Meta, &req)
		if err == nil {
			var out any
			if out, err = n.serve(ctx, req.Method, req.Body); err == nil {
				r.Body, err = json.Marshal(out)
			}
		}
		if err != nil {
			r.Error, r.Code = err.Error(), errorCode(err)
		}
		raw, err := json.Marshal(r)
		if err != nil {
			n.log.Error("cannot encode the reply to the peer", "err", err)
			return
		}
		n.peer.link.Send(link, &pair.Msg{Type: pair.MsgReply, ID: msg.ID, Meta: raw})
		n.peer.link.Kick()
	})
}

func errorCode(err error) string {
	for code, base := range map[string]error{"not_found": meta.ErrNotFound, "exists": meta.ErrExists, "in_use": meta.ErrInUse,
		"invalid": meta.ErrInvalid, "exhausted": meta.ErrExhausted, "not_ready": meta.ErrNotReady, "aborted": meta.ErrAborted, "unavailable": control.ErrUnavailable, "copying": control.ErrCopying} {
		if errors.Is(err, base) {
			return code
		}
	}
	return ""
}

// serve is what one runtime does for the other.
func (n *Node) serve(ctx context.Context, method string, body json.RawMessage) (any, error) {
	switch method {
	case "capacity":
		return n.capacity()
	case "transfer":
		return served(body, func(req transferRequest) (any, error) { return n.transferHere(ctx, req) })
	case "create_snapshot":
		return served(body, func(req meta.Snapshot) (any, error) { return nil, n.createSnapshotHere(ctx, req) })
	case "clone_lun":
		return served(body, func(req meta.LUN) (any, error) { return nil, n.cloneHere(ctx, req) })
	case "modify":
		return served(body, func(req meta.Modify) (any, error) { return nil, n.modifyHere(ctx, req) })
	case "prepare_modify":
		return served(body, func(req prepareModify) (any, error) { return nil, n.prepareModifyHere(req) })
	case "prepare_volume":
		return served(body, func(req prepareVolume) (any, error) { return nil, n.prepareVolumeHere(req) })
	case "scrub":
		return served(body, func(req scrubRequest) (any, error) { return n.scrubHere(req) })
	case "warm":
		return served(body, func(req warmRequest) (any, error) { return n.readAhead(ctx, req), nil })
	case "copies":
		return served(body, func(req copyRequest) (any, error) { return copyReply{n.copyStandings(req.Copies)}, nil })
	case "seal_copies":
		n.copies.wake.changed()
		return nil, nil
	case "hold_group":
		return served(body, func(req holdGroup) (any, error) { return nil, n.holdGroupHere(ctx, req, nil) })
	case "unhold_group":
		return served(body, func(req holdName) (any, error) { n.unhold(req); return nil, nil })
	case "begin_copies":
		return served(body, func(req beginCopies) (any, error) { return nil, n.beginOther(req) })
	case "decided_group":
		return served(body, func(req holdName) (any, error) { n.decided(req); return nil, nil })
	case "group_ended":
		return served(body, func(req endedGroup) (any, error) { n.groupEnded(req); return nil, nil })
	case "use":
		return n.use(), nil
	case "tiers":
		return served(body, func(req tiersRequest) (any, error) { return nil, n.tiersHere(req.Volume) })
	case "tier_hints":
		return served(body, func(req tierHints) (any, error) { n.takeHints(req); return nil, nil })
	case "scrub_shares":
		var r scrubRecord
		r.Now, r.Last = n.shares()
		return r, nil
	}
	return nil, fmt.Errorf("the peer called %q, which this release does not know: upgrade this node", method)
}

func served[T any](body json.RawMessage, f func(T) (any, error)) (any, error) {
	var req T
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, err
	}
	return f(req)
}
