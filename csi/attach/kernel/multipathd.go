package kernel

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// askLimit is how long a status waits for multipathd.
const askLimit = 2 * time.Second

// topology is what "multipathd show map NAME json" answers, or "multipathd show maps json"; fields
// that are not used are left out.
type topology struct {
	Map  mapTopology   `json:"map"`
	Maps []mapTopology `json:"maps"`
}

type mapTopology struct {
	UUID   string `json:"uuid"` // its WWID
	Groups []struct {
		State string `json:"dm_st"`
		Paths []struct {
			Dev     string `json:"dev"`
			State   string `json:"dm_st"`
			Checker string `json:"chk_st"`
			Prio    int    `json:"pri"`
		} `json:"paths"`
	} `json:"path_groups"`
}

// parseTopology refuses an answer about another map.
func parseTopology(raw string, id naa) (map[string]pathState, error) {
	var t topology
	if err := json.Unmarshal([]byte(raw), &t); err != nil {
		return nil, fmt.Errorf("multipathd: %w", err)
	}
	if t.Map.UUID != id.wwid() {
		return nil, fmt.Errorf("multipathd answered about %q, not %s", t.Map.UUID, id.wwid())
	}
	return t.Map.states(), nil
}

func (m mapTopology) states() map[string]pathState {
	out := map[string]pathState{}
	for i, g := range m.Groups {
		for _, p := range g.Paths {
			usable := p.State == "active"
			out[p.Dev] = pathState{current: g.State == "active" && usable, usable: usable, text: p.State + ", checker: " + p.Checker, prio: p.Prio, group: i}
		}
	}
	return out
}

// parseTopologies reads the answer about all maps, by WWID.
func parseTopologies(raw string) (map[string]map[string]pathState, error) {
	var t topology
	if err := json.Unmarshal([]byte(raw), &t); err != nil {
		return nil, fmt.Errorf("multipathd: %w", err)
	}
	out := map[string]map[string]pathState{}
	for _, m := range t.Maps {
		out[m.UUID] = m.states()
	}
	return out, nil
}

// allStates implements host.
func (l *linux) allStates(ctx context.Context) map[string]map[string]pathState {
	raw, err := l.run(ctx, askLimit, "multipathd", "show", "maps", "json")
	if err != nil {
		return nil
	}
	out, err := parseTopologies(raw)
	if err != nil {
		return nil
	}
	return out
}

// states implements host.
func (l *linux) states(ctx context.Context, m dmMap) map[string]pathState {
	raw, err := l.run(ctx, askLimit, "multipathd", "show", "map", m.name, "json")
	if err != nil {
		return nil
	}
	out, err := parseTopology(raw, m.id)
	if err != nil {
		return nil
	}
	return out
}
