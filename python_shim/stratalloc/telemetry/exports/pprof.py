# SPDX-License-Identifier: Apache-2.0
"""pprof's profile (gzip): what was allocated in all, and what was held at the
peak, by call site and scope; go tool pprof, Pyroscope and Perfetto open it.

A sample is one holder of one device: its stack is the call site's, then the
scope's, each by its whole name, since pprof adds up what has the same; category
and device are labels. Needs protobuf.
"""

from stratalloc._rendering import tree as _tree
from stratalloc.telemetry import model, progress, replay
from stratalloc.telemetry.exports.messages import messages
from stratalloc.telemetry.exports.notes import notes
from stratalloc.telemetry.exports.target import text, zipped

TYPES = (("alloc_space", "bytes"), ("alloc_objects", "count"),
         ("inuse_space", "bytes"), ("inuse_objects", "count"))


def write(run, path):
    """Raises MissingPackageError: protobuf is not installed."""
    made = build(run).SerializeToString(deterministic=True)
    with zipped(path) as file:
        file.write(made)


def build(run):
    """The Profile."""
    table = _Profile(run)
    for index in replay.devices(run):
        walked = replay.Replay(run, index)
        values = {}
        for at, holders in ((0, walked.churn()), (2, walked.holders())):
            for one in holders:
                key = (one.scope, one.category, one.site)
                row = values.setdefault(key, [0, 0, 0, 0])
                row[at:at + 2] = one.bytes, one.count
        for key in progress.over(sorted(values), "writing holders"):
            table.sample(index, *key, values[key])
    return table.profile


class _Profile:
    def __init__(self, run):
        self.run = run
        self.profile = messages("pprof")["Profile"]()
        self.profile.string_table.append("")
        self._strings, self._functions, self._locations = {"": 0}, {}, {}
        for name, unit in TYPES:
            self.profile.sample_type.add(type=self._string(name),
                                         unit=self._string(unit))
        self.profile.mapping.add(
            id=1, filename=self._string("stratalloc"), has_functions=True,
            has_filenames=True, has_line_numbers=True)
        self.profile.time_nanos = run.started
        self.profile.duration_nanos = run.duration
        self.profile.default_sample_type = self._string("inuse_space")
        for key, value in notes(run).items():
            self.profile.comment.append(self._string(f"{key}: {value}"))

    def _string(self, name):
        name = text(name)
        found = self._strings.get(name)
        if found is None:
            found = self._strings[name] = len(self._strings)
            self.profile.string_table.append(name)
        return found

    def _location(self, name, file, line):
        key = (name, file, line)
        found = self._locations.get(key)
        if found is None:
            function = self._functions.get(key[:2])
            if function is None:
                function = self._functions[key[:2]] = len(self._functions) + 1
                self.profile.function.add(
                    id=function, name=self._string(name),
                    system_name=self._string(name),
                    filename=self._string(file))
            found = self._locations[key] = len(self._locations) + 1
            self.profile.location.add(id=found, mapping_id=1).line.add(
                function_id=function, line=line)
        return found

    def sample(self, device, scope, category, site, values):
        stack = [self._location(one.function or one.file or "(not known)",
                                one.file, one.line)
                 for one in self.run.stack(site)]
        kind = self.run.classes.get(scope, "")
        stack += [self._location(path, kind, 0) for path in
                  reversed(_tree.paths(self.run.scopes[scope]))]
        found = self.profile.sample.add(location_id=stack, value=values)
        found.label.add(key=self._string("category"),
                        str=self._string(model.CATEGORIES[category]))
        # As text: a number that is 0 is no label at all to pprof.
        found.label.add(key=self._string("device"), str=self._string(str(device)))
        found.label.add(key=self._string("scope"),
                        str=self._string(self.run.scopes[scope]))
