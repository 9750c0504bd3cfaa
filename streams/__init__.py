"""A durable execution engine whose only server is Kafka."""

from streams.authoring.app import App
from streams.authoring.context import Context
from streams.authoring.declared import Effect, Signal
from streams.authoring.graph import Goto, Graph, Node, Send, extend, merge
from streams.authoring.subscriber import BatchContext, EffectContext, Subscription
from streams.authoring.task import FencingToken, Found, NotFound, Retry, Task, TaskContext, Unknown
from streams.authoring.workflow import Workflow
from streams.errors import (
    Cancelled,
    ChildFailed,
    Evicted,
    Fail,
    InputConflict,
    NoSuchInterrupt,
    OpError,
    Refused,
    RequestFailed,
    RunTerminal,
    StreamsError,
    TaskFailed,
    TimedOut,
    TryAgain,
    UnknownRun,
    Withdrawn,
)
from streams.kernel.ops import Op
from streams.kernel.won import Won

__all__ = [
    "App",
    "BatchContext",
    "Cancelled",
    "ChildFailed",
    "Context",
    "Effect",
    "EffectContext",
    "Evicted",
    "Fail",
    "FencingToken",
    "Found",
    "Goto",
    "Graph",
    "InputConflict",
    "NoSuchInterrupt",
    "Node",
    "NotFound",
    "Op",
    "OpError",
    "Refused",
    "RequestFailed",
    "Retry",
    "RunTerminal",
    "Send",
    "Signal",
    "StreamsError",
    "Subscription",
    "Task",
    "TaskContext",
    "TaskFailed",
    "TimedOut",
    "TryAgain",
    "Unknown",
    "UnknownRun",
    "Withdrawn",
    "Won",
    "Workflow",
    "extend",
    "merge",
]
