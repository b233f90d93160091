"""Every number of seconds, with what it has to be longer or shorter than.

Params and settings that users set have their defaults here, too. Each number is generous: it ends what would otherwise
hang, and nothing waits for it in a run that goes well, but for the pauses between two looks.
"""

from __future__ import annotations

# Between two looks at what wakes nobody
POLL_SECONDS = 0.1
GATHER_POLL_SECONDS = 0.1  # in an exchange of all nodes
PING_SECONDS = 0.5  # between two reports of a node to the driver, in a small cluster
LOOK_SECONDS = 1.0  # whether executors leave
SPACE_POLL_SECONDS = 1.0  # whether a node has space for rows of a feed task
TAKEN_SECONDS = 1.0  # between two reports of how many fed rows have been read
STREAM_SECONDS = 0.5  # whether a stream has ended
SHOWN_SECONDS = 0.2  # between two looks for lines of output to show

# A call to the driver
CALL_TIMEOUT = 5.0  # for one answer; a call is then repeated
CALL_RETRY_SECONDS = 0.2
OUTCOME_SECONDS = 4.0  # that the driver delays an answer until it knows more
REPORT_SECONDS = 10.0  # for a failure to reach the driver
WHY_SECONDS = 10.0  # for a feed task to learn why a node cannot be reached
STOP_STREAM_SECONDS = 30.0  # for a request from outside to end a stream
REFUSED_SECONDS = 3.0  # that the driver's host refuses connections, until it is gone: a stopped one accepts them
SERVER_CLOSE_SECONDS = 5.0  # for calls that are being answered when a server closes

# The start of a run
RESERVATION_TIMEOUT = 600.0  # for all nodes to start, by default
CONNECT_SECONDS = 3.0  # for a connection to the driver's server
FIRST_ANSWER_SECONDS = 10.0  # of that server
ARRIVE_SECONDS = 30.0  # from the first task of a barrier stage to the last: hosts unpack archives, start Python
HANDSHAKE_SECONDS = 0.05  # more than that for each task: the driver proves its identity to all, on few cores
PROBE_SECONDS = 20.0  # to look at the executors' Python
TENSORBOARD_SECONDS = 60.0  # for TensorBoard to start
NOTICE_SECONDS = 5.0  # of work of a worker after the chief, until the user is told what is waited for

# Rows
FEED_TIMEOUT = 600.0  # that rows wait without one being read, by default
LEFTOVER_SECONDS = 86_400.0  # after which files of a snapshot without a manifest were left by a killed writer

# Signs of life
LEASE_SECONDS = 60.0  # that driver and node wait for one of each other, by default; healthy programs pause less
LEASE_GRACE_SECONDS = 2 * CALL_TIMEOUT  # more than that for the driver: a silent node ends itself first if it can
SPARK_NETWORK_SECONDS = 120.0  # spark.network.timeout: Spark must still have the tasks when a run is given up
HEARTBEAT_TIMEOUT = 120.0  # that a TensorFlow process may be silent, or not read what is sent to it
CULPRIT_SECONDS = 10.0  # after that: for the supervisor of a stuck process to report it
COLLATERAL_SECONDS = 5.0  # within which a node whose end has broken others is known
RECONNECT_SECONDS = 5.0  # for a node whose connection has ended to connect again
UNHEARD_SECONDS = 2.0  # for a node to report for the first time, once all have met
PAUSE_SECONDS = 5.0  # a longer pause between two looks of the driver means that the driver itself was suspended

# The end of a node
FAILED_SECONDS = 30.0  # for a process to end once its train function has failed: libraries upload their logs
EXIT_SECONDS = 10.0  # for a process to end after its connection has
DRAIN_SECONDS = 1.0  # for reading the rest of the messages after a process has ended
END_SECONDS = 10.0  # for a process that is asked to end
CHANNEL_CLOSE_SECONDS = 10.0  # for the last messages to a process
REAP_SECONDS = 10.0  # for a reaper to end processes and delete files
SUPERVISOR_EXIT_SECONDS = 30.0  # between the end of a supervisor and that of its process

# The end of a run
CAUSE_SECONDS = 5.0  # for Spark to report why it could not read a node's rows
TASKS_END_SECONDS = 8.0  # for the tasks of a failed run to end by themselves; then its error is raised
FEED_END_SECONDS = 2.0  # for feed tasks of a failed run to end; one whose node stands still learns nothing
CLEANUP_SECONDS = 6.0  # for nodes to confirm that they have cleaned up; none does whose reaper was killed with it
CANCEL_SECONDS = 0.5  # between two requests to cancel a job

# The next attempt
DAEMON_SECONDS = 60.0  # in which a job is repeated because Spark hands out Python workers that have died
SETTLE_SECONDS = 3.0  # after a loss, for Spark to replace an executor
SLOTS_POLL_SECONDS = 0.2
GROW_SECONDS = 60.0  # between two looks for a larger cluster, by default
WORTH_SECONDS = 10.0  # that a larger cluster must save: a later fit on two executors begins in less

# Servers of an executor
IDLE_SECONDS = 300.0  # without work, by default
LOCK_SECONDS = 30.0  # within which another process starts a server
TICK_SECONDS = 5.0  # between two looks of an idle server
QUIET_SECONDS = 1.0  # without a request, before a fork server does what can wait
FORK_ANSWER_SECONDS = 120.0  # for a fork server to import TensorFlow on a busy machine, and to fork; then it is killed
FORK_REQUEST_SECONDS = 3.0  # for a request to arrive whole
FORK_EXIT_SECONDS = 2.0  # between the end of a process and the report of its exit code
ALLOCATOR_SECONDS = 3.0  # for the memory allocator's thread to get its name, on a busy machine
SCORER_START_SECONDS = 120.0  # for the scoring process to start on a busy machine
SCORER_ANSWER_SECONDS = 60.0  # for it to accept a client, even if it is busy
SCORER_IDLE_SECONDS = 10.0  # at least: the process that has started it connects

# A store
STORE_SECONDS = 30.0  # for a request
STORE_ANSWER_SECONDS = 5.0  # for a connection, of several attempts
STORE_SILENT_SECONDS = 30.0  # between two bytes of an answer

# Workers of KerasEstimator
GREETING_SECONDS = 20.0  # for another worker, which may be busy with others, to prove its identity
GUEST_SECONDS = 2.0  # for a caller to prove its identity to the worker that it calls, while others wait
LISTEN_RETRY_SECONDS = 0.05  # until another worker listens
AWAKE_SECONDS = 0.005  # that a worker looks for bytes again and again, before it sleeps until some arrive
TRAINED_SECONDS = 1.0  # between two reports of how far the training is

# The driver's program
INSPECTION_SECONDS = 600.0  # for a model to be made in a process of its own
UNPACK_SECONDS = 300.0  # for another process to unpack a model
TRIALS_END_SECONDS = 30.0  # for the fits of an interrupted search to end
SYSTEM_METRICS_SECONDS = 10.0  # between two samples of a host, by default
TRACKING_ANSWER_SECONDS = 5.0  # of MLflow's server
TRACKING_RETRY_SECONDS = 5.0  # until it is asked again
TRACKING_CLOSE_SECONDS = 30.0  # for it to take what is left at the end of a fit
DOCTOR_SECONDS = 50.0  # for all checks, by default: a minute with the end of the job and of the session
JAVA_SECONDS = 10.0  # for Java to say its version
SESSION_STOP_SECONDS = 5.0  # for the doctor's session to stop

SHORTER = {
    "a delayed answer comes before its call times out": (OUTCOME_SECONDS, CALL_TIMEOUT),
    "a feed task has time for a delayed answer": (OUTCOME_SECONDS + CALL_TIMEOUT, WHY_SECONDS),
    "a failure has time for a second call": (CALL_TIMEOUT + CALL_RETRY_SECONDS, REPORT_SECONDS),
    "a driver that is gone is noticed long before the lease": (10 * REFUSED_SECONDS, LEASE_SECONDS),
    "a lost connection is noticed before the lease": (RECONNECT_SECONDS, LEASE_SECONDS),
    "a run is given up while Spark has its tasks": (LEASE_SECONDS + LEASE_GRACE_SECONDS, SPARK_NETWORK_SECONDS),
    "a node reports several times before its failure counts": (4 * PING_SECONDS, COLLATERAL_SECONDS),
    "a stuck process has time to be reported": (CALL_TIMEOUT, CULPRIT_SECONDS),
    "a task has time for the first answer": (CONNECT_SECONDS + FIRST_ANSWER_SECONDS, ARRIVE_SECONDS),
    "a server closes before its run has been cleaned up": (SERVER_CLOSE_SECONDS, CLEANUP_SECONDS),
    "a node hears that it must stop before its tasks are canceled": (2 * PING_SECONDS, TASKS_END_SECONDS),
    "a silent stranger is sent away before a worker behind it gives up": (GUEST_SECONDS, GREETING_SECONDS),
    "a request is given up before its client takes the server for hung": (FORK_REQUEST_SECONDS, FORK_ANSWER_SECONDS),
    "several answers of MLflow's server fit into the end of a fit": (
        3 * TRACKING_ANSWER_SECONDS,
        TRACKING_CLOSE_SECONDS,
    ),
    "all attempts to connect fit into a request to a store": (3 * STORE_ANSWER_SECONDS, STORE_SECONDS),
}
"""What must be shorter than what; tests check it."""
