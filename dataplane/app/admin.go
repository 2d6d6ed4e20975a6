package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/human"
	"github.com/gemel-storage/gemel/internal/scrubs"
)

// admin is how the commands for an administrator reach a node's control API.
type admin struct {
	addr, cert, key, ca string
	timeout             time.Duration
}

// adminCommands are the commands beside the server.
func adminCommands() []*cobra.Command {
	a := &admin{}
	cmds := []*cobra.Command{a.status(), a.scrub(), a.force(), a.transfer(), a.drain(), a.drainMember(), a.tiering(), a.pinTier(), a.endQuarantine(), a.profile()}
	for _, c := range cmds {
		c.SilenceUsage, c.SilenceErrors = true, true
		f := c.Flags()
		f.StringVar(&a.addr, "control", "", "host:port of the node's control API (its --control-listen)")
		f.StringVar(&a.cert, "tls-cert", "", "PEM certificate with the URI gemel://CLUSTER/control")
		f.StringVar(&a.key, "tls-key", "", "PEM key of that certificate")
		f.StringVar(&a.ca, "tls-ca", "", "PEM certificates of the authority that signs the node's certificate")
		f.DurationVar(&a.timeout, "timeout", 30*time.Second, "time limit of the call")
	}
	return cmds
}

// call runs f with a connection to the node.
func (a *admin) call(cmd *cobra.Command, f func(context.Context, targetv1.TargetServiceClient) error) error {
	if a.addr == "" {
		return errors.New("--control is required: host:port of the node's control API")
	}
	creds := insecure.NewCredentials()
	if a.cert != "" || a.key != "" || a.ca != "" {
		cert, err := tls.LoadX509KeyPair(a.cert, a.key)
		if err != nil {
			return fmt.Errorf("--tls-cert, --tls-key: %w", err)
		}
		raw, err := os.ReadFile(a.ca)
		if err != nil {
			return fmt.Errorf("--tls-ca: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(raw) {
			return fmt.Errorf("--tls-ca: %s contains no PEM certificate", a.ca)
		}
		creds = credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, MinVersion: tls.VersionTLS13})
	}
	conn, err := grpc.NewClient(a.addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		return fmt.Errorf("--control: %w", err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
	defer cancel()
	return f(ctx, targetv1.NewTargetServiceClient(conn))
}

func (a *admin) status() *cobra.Command {
	var format string
	cmd := &cobra.Command{Use: "status", Short: "Show the status of a node", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "text" && format != "json" {
				return fmt.Errorf("--output: %q must be text or json", format)
			}
			return a.call(cmd, func(ctx context.Context, c targetv1.TargetServiceClient) error {
				s, err := c.GetStatus(ctx, &targetv1.GetStatusRequest{})
				if err != nil {
					return err
				}
				if format == "json" {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), protojson.Format(s))
					return err
				}
				return printStatus(cmd.OutOrStdout(), s)
			})
		}}
	cmd.Flags().StringVarP(&format, "output", "o", "text", "text or json")
	return cmd
}

// printStatus says first what is wrong and what to do.
func printStatus(w io.Writer, s *targetv1.Status) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("node", "%s of pair %s, cluster %s, %s", s.Node, s.Pair, s.Cluster, s.Version)
	line("state", "%s", strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.Phase.String(), "PHASE_"), "_", " ")))
	if s.Reason != "" {
		line("reason", "%s", s.Reason)
	}
	line("record", "epoch %d, members %s", s.Epoch, strings.Join(s.Members, " "))
	if s.AloneSince != nil {
		line("alone since", "%s", s.AloneSince.AsTime().Format(time.RFC3339))
	}
	if s.Exposed {
		line("exposed", "not all data written before the peer left is flushed yet")
	}
	if r := s.Resync; r != nil && r.Finished == nil {
		line("resync", "%s of %s, %s/s%s", human.Size(r.DoneBytes), human.Size(r.TotalBytes), human.Size(r.BytesPerSecond), until(r))
		if r.Full {
			line("", "everything, because %s", r.FullReason)
		}
	}
	if r, ok := scrubs.Of(s.Scrub); ok {
		line("scrub", "%s", r.Progress(time.Now()))
		if last := s.LastScrub; r.Active && last != nil {
			l, _ := scrubs.Of(last)
			line("last scrub", "%s: %s", last.Finished.AsTime().Format(time.RFC3339), l.Progress(time.Now()))
		}
	}
	if x := s.Supervisor; x.GetCrashes() > 0 {
		line("crashed", "%d times, the last time at %s: %s; the log of that process names the cause", x.Crashes, x.LastCrashTime.AsTime().Format(time.RFC3339), x.LastCrash)
	}
	if x := s.Supervisor; x.GetPeerConfigured() && !x.PeerConnected {
		line("supervisor", "of the other node is not connected: a crash of the other node's process costs a lease; check --peer-supervisor and the network")
	}
	if a := s.Arbiter; a != nil && !a.Reachable {
		line("arbiter", "has not answered since %s: %s", a.UnreachableSince.AsTime().Format(time.RFC3339), a.Error)
	}
	if len(s.QuarantinedLuns) > 0 {
		line("quarantined", "%s: their commands ended two processes within a minute, and are not executed any more; see end-quarantine", strings.Join(s.QuarantinedLuns, " "))
	}
	if len(s.LostLuns) > 0 {
		line("lost writes", "%s: MEDIUM ERROR until published again", strings.Join(s.LostLuns, " "))
	}
	if c := s.Checksums; c.GetHealedBlocks() > 0 {
		line("healed", "%d blocks did not match their checksums and were healed from the other node since the process started: check the disk", c.HealedBlocks)
	}
	if c := s.Checksums; c.GetLostBlocks() > 0 {
		text := ""
		for _, f := range c.Findings {
			if f.Lost {
				text = fmt.Sprintf(", the last one at byte %d of %s", f.LastOffset, f.Uuid)
			}
		}
		line("lost blocks", "%d since the process started, of which no node has a good copy%s: restore the file or the volume from a backup", c.LostBlocks, text)
	}
	line("dirty", "%s", human.Size(s.DirtyBytes))
	line("capacity", "%s free of %s", human.Size(s.FreeBytes), human.Size(s.CapacityBytes))
	if len(s.Volumes) > 1 {
		for _, v := range s.Volumes {
			lacks := ""
			if len(v.Lacks) > 0 {
				lacks = "; node " + strings.Join(v.Lacks, " and node ") + " does not have it, so no LUN can be created in it"
			}
			line("", "%s: %s free of %s%s", v.Name, human.Size(v.FreeBytes), human.Size(v.CapacityBytes), lacks)
		}
	}
	for i, p := range s.Places {
		key := ""
		if i == 0 {
			key = "members"
		}
		line(key, "%s", place(p))
	}
	line("owned LUNs", "%d", len(s.OwnedLuns))
	printOwnership(line, s.Ownership)
	if s.ForceEpoch != 0 {
		line("force", "if the other node is lost for good: gemel-target force --epoch %d --accept-data-loss", s.ForceEpoch)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func place(p *targetv1.Place) string {
	text := fmt.Sprintf("%s/%s: %s free of %s", p.Volume, p.Member, human.Size(p.FreeBytes), human.Size(p.CapacityBytes))
	if p.Fast {
		text += "; fast"
	}
	if p.ReadUs > 0 {
		text += fmt.Sprintf("; a read takes %.2f ms", float64(p.ReadUs)/1000)
	}
	switch {
	case !p.Draining:
	case p.ExtentsLeft == 0:
		text += "; drained: it can be taken away"
	default:
		text += fmt.Sprintf("; draining: %d extents left, at most %s", p.ExtentsLeft, human.Size(p.ExtentsLeft<<22))
		if p.SecondsLeft > 0 {
			text += fmt.Sprintf(", about %v", time.Duration(p.SecondsLeft)*time.Second)
		}
	}
	if p.Reason != "" {
		text += ": " + p.Reason
	}
	return text
}

func until(r *targetv1.Resync) string {
	if r.ExpectedEnd == nil {
		return ""
	}
	return ", ends about " + r.ExpectedEnd.AsTime().Format(time.RFC3339)
}

func (a *admin) scrub() *cobra.Command {
	req := &targetv1.ScrubRequest{}
	cmd := &cobra.Command{Use: "scrub [UUID...]", Short: "Compare both copies of LUNs and snapshots while they are in use",
		Long: `Scrub compares the copies of both nodes, of all LUNs and snapshots or of the ones given as arguments. It reports each
difference as an event with its offset, in the log and in the status. A block that does not match its checksum is repaired
from the other node. With --repair, other differences are repaired too: the owner's copy replaces that of its partner. Only
one scrub runs at a time: if a scrub is already running, the command shows that one.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Uuids = args
			return a.call(cmd, func(ctx context.Context, c targetv1.TargetServiceClient) error {
				r, err := c.Scrub(ctx, req)
				if err != nil {
					return err
				}
				if x, ok := scrubs.Of(r.Shares...); r.UnderWay && ok {
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "a scrub is already running, since %s, started by %s: %s; to follow it, run: gemel-target status\n",
						x.Started.Format(time.RFC3339), x.Who(), x.Progress(time.Now()))
				} else if r.UnderWay {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), "a scrub is already running on the other node; to follow it, run: gemel-target status")
				} else {
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "comparing %s; to follow it, run: gemel-target status\n", human.Size(r.TotalBytes))
				}
				return err
			})
		}}
	cmd.Flags().BoolVar(&req.Repair, "repair", false, "repair differences: the owner's copy replaces that of its partner")
	cmd.Flags().Uint64Var(&req.BytesPerSecond, "rate", 0, "limit in bytes per second; 0: the node's --scrub-rate")
	return cmd
}

func (a *admin) force() *cobra.Command {
	req := &targetv1.ForceRequest{}
	cmd := &cobra.Command{Use: "force", Short: "Make a node the only member although the record names another node, or is lost", Args: cobra.NoArgs,
		Long: `Use force if a member is lost (the node that the record names will never return) or if the record is lost (the arbiter
was emptied or rolled back). Make sure that the other node is stopped: force cannot stop it.

Writes that only the lost node has are lost. Every LUN answers MEDIUM ERROR to its hosts until it is published again
(unmapped and mapped), so that no host continues with data that is older than the writes that were acknowledged to it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd, func(ctx context.Context, c targetv1.TargetServiceClient) error {
				if _, err := c.Force(ctx, req); err != nil {
					return err
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "taking over; to follow it, run: gemel-target status")
				return err
			})
		}}
	cmd.Flags().Uint64Var(&req.Epoch, "epoch", 0, "epoch that the node's status shows")
	cmd.Flags().BoolVar(&req.AcceptDataLoss, "accept-data-loss", false, "accept that writes that only the lost node has are lost")
	return cmd
}
