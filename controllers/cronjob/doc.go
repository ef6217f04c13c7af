// Package cronjob starts a Job at each time of a CronJob's schedule.
//
// Reads CronJobs and Jobs; creates and deletes Jobs, and writes CronJob status.
//
// Invariants: a scheduled time has one Job, for the Job's name is made from the
// time, so that trying again, also by another leader, does not start it twice.
// However many times were missed, say while no controller ran for a day, one Job
// is started: that of the latest, if startingDeadlineSeconds still allows it.
// Jobs of others are never touched.
package cronjob
