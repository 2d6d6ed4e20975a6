package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"time"
)

// baselines are what this machine can do at all: a bare TCP loop that copies 1 MiB blocks, and one that sends 4 KiB and waits
// for 48 bytes (a mirrored write's trip to the partner and back). Both ends are goroutines of this process.
func baselines(ctx context.Context, d time.Duration) ([]result, error) {
	copied, err := tcpLoop(ctx, 48, 1<<20, d)
	if err != nil {
		return nil, err
	}
	trips, err := tcpLoop(ctx, 4096+48, 48, d)
	if err != nil {
		return nil, err
	}
	return []result{
		{Name: "bare_tcp_copy_1m", Unit: "MiB/s", Gemel: copied, Rounds: 1},
		{Name: "bare_tcp_round_trip_4k_us", Unit: "us", Gemel: 1e6 / trips, Rounds: 1},
	}, nil
}

// tcpLoop sends requests of out bytes and waits for answers of in bytes, four ahead when answers are large; exchanges per second.
func tcpLoop(ctx context.Context, out, in int, d time.Duration) (float64, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		req, ans := make([]byte, out), make([]byte, in)
		for {
			if _, err := io.ReadFull(c, req); err != nil {
				served <- nil
				return
			}
			if _, err := c.Write(ans); err != nil {
				served <- err
				return
			}
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return 0, err
	}
	req, ans := make([]byte, out), make([]byte, in)
	ahead := 1
	if in >= 1<<20 {
		ahead = 4
	}
	for range ahead - 1 {
		_, err = c.Write(req)
	}
	n, begun := 0, time.Now()
	for err == nil && time.Since(begun) < d && ctx.Err() == nil {
		if _, err = c.Write(req); err == nil {
			_, err = io.ReadFull(c, ans)
			n++
		}
	}
	rate := float64(n) / time.Since(begun).Seconds()
	c.Close()
	if e := <-served; !errors.Is(e, net.ErrClosed) && e != nil && n == 0 {
		err = errors.Join(err, e)
	}
	return rate, errors.Join(err, context.Cause(ctx))
}

var perfIOPS = regexp.MustCompile(`iops average (\d+)`)

// secondOpinion has libiscsi's iscsi-perf read both targets: another client, the same question.
func secondOpinion(ctx context.Context, o options, gemel, peer *served) (result, error) {
	var samples [2][]sample
	for range min(o.rounds, 3) {
		for i, s := range []*served{gemel, peer} {
			seconds := max(2, int(o.seconds.Seconds()))
			out, err := exec.CommandContext(ctx, "iscsi-perf", "-i", hostIQN, "-m", "32", "-b", "8", "-t", strconv.Itoa(seconds), "-r",
				fmt.Sprintf("iscsi://%s/%s/%d", s.portal, s.iqn, s.lun)).CombinedOutput()
			all := perfIOPS.FindAllSubmatch(out, -1)
			if len(all) == 0 {
				return result{}, fmt.Errorf("iscsi-perf on %s: %w: %.300s", s.name, err, out)
			}
			v, err := strconv.ParseFloat(string(all[len(all)-1][1]), 64)
			if err != nil {
				return result{}, err
			}
			samples[i] = append(samples[i], sample{rate: v})
		}
	}
	return compare("iscsi_perf_randread_4k_qd32", "IOPS", samples[0], samples[1], peer), nil
}
