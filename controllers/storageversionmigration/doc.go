// Package storageversionmigration writes the objects of a resource anew, so that
// they are stored in its present version and under its present encryption key.
//
// Reads StorageVersionMigrations and all objects of the resource that each
// names. Writes the objects without changing them, the migrations' status, and
// the storedVersions of CustomResourceDefinitions.
//
// Invariants: of one resource one migration runs at a time, the oldest first. An
// object is written only as it was listed: one that was changed or deleted since
// is stored anew already. A custom resource's old versions are dropped from
// storedVersions only when the definition is the one that the migration began
// with.
package storageversionmigration
