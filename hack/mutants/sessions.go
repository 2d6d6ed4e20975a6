package main

// Guards of volumes with several sessions to each portal.
func init() { mutants = append(mutants, sessionMutants...) }

var sessionMutants = []mutant{
	{36, "a volume uses all sessions of its target", in("plan_sessions.go",
		"return all[:min(len(all), u.count())]", "return all"), kernel, "TestHazard36SharedSessions"},
	{36, "the volume that acts decides how many sessions there are", in("plan_sessions.go",
		"n = max(n, o.count())", "n = max(n, 1)"), kernel, "TestHazard36SharedSessions"},
	{36, "a session that something else uses is ended", in("plan_sessions.go",
		"case o.idle(s):", "case need > 0 || o.idle(s):"), kernel, "TestHazard36SharedSessions"},
	{36, "the last path that works is removed because it is one too many", in("plan_present.go",
		"(d.at.lun != g.lun || g.served(o))", "(d.at.lun != g.lun || d.at.lun == g.lun)"), kernel, "TestHazard36LastPath"},
	{36, "the number of a SCSI host says which session is the oldest", in("observed.go",
		"cmp.Compare(a.sid, b.sid)", "cmp.Compare(a.host, b.host)"), kernel, "TestHazard36Oldest"},
	{36, "sessions with the last two paths of a map are ended together", in("plan_sessions.go",
		"case need == 0 && !one && !o.carries(s):", "case need == 0 && (!one || one) && !o.carries(s):"), kernel, "TestHazard36OneAtATime"},
	{36, "a record loses its secrets when its number of sessions changes", in("database.go",
		"withCount(raw, n.sessions)", "withCount(n.render(), n.sessions)"), kernel, "TestHazard36Record"},
	{36, "the record of an attachment keeps the former number of sessions", in("attacher.go",
		"		r.Attachment.Sessions = want.Sessions\n", ""), kernel, "TestCrashAtEveryStepOfAnotherNumber"},
	{19, "all sessions to a portal are ended because of secrets that it refuses", in("plan_sessions.go",
		"g.relogs(s) && len(have) >= need", "g.relogs(s) && len(have) > 0"), kernel, "TestCredentialsOfSeveralSessions"},
	{19, "paths to one node stay in two groups", in("attacher.go",
		"ok && g != st.group {", "ok && g < 0 {"), kernel, "TestHazard19SplitGroups"},
}
