"""Schedules of pipelines: lists of actions per rank, as data (`schedule`), the known ones (`known`), their time, what they hold, their laws, their sends."""
