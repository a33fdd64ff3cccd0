# SPDX-License-Identifier: Apache-2.0
"""%gpumem and %%gpumem, for IPython and notebooks: `%load_ext stratalloc`.

A cell runs as it would without: its output, its last value and its exception
are as usual, and what it did to memory is shown behind its output and ahead of
its traceback. Where another allocator is in place it runs as well, and a
sentence says what to do. Imported by load_ipython_extension() alone, since
IPython is there by then.
"""

import ast
import keyword

from IPython.core import magic
from IPython.core.displayhook import DisplayHook
from IPython.core.error import UsageError
from IPython.display import display

from stratalloc._notebook import cell_memory as _cell_memory

_NAME = "gpumem"


@magic.magics_class
class GpuMem(magic.Magics):
    """The two magics of one shell."""

    @magic.needs_local_scope
    @magic.no_var_expand
    @magic.line_cell_magic
    def gpumem(self, line, cell=None, local_ns=None):
        """What a cell or a line does to GPU memory.

        %%gpumem [--top N] [--peak] [--trace] [-o NAME]     a cell
        %gpumem [options] statement                         a line
        %gpumem [--top N] [--peak]                          what is held now

        Shown are, for each device, what it held before, at most and after; who
        holds more than before, by layer and category; what moved between the
        tiers, and how long operators waited for it. torch's peaks begin anew
        with the cell.

          --top N   lines of each tree (10)
          --peak    who held memory at the peak, too
          --trace   records events, for a picture over time and -o's `run`
          -o NAME   puts the result into this variable: to_dict(), to_pandas()
        """
        __tracebackhide__ = True
        options, text = self.parse_options(
            line, "o:", "top=", "peak", "trace", posix=False, strict=False,
            preserve_non_opts=True)
        top, name = _checked(options)
        peak, trace = "peak" in options, "trace" in options
        if cell is not None:
            if text:
                raise UsageError(f"%%{_NAME}: {text!r} is no option; the code "
                                 "begins on the next line")
            text = cell
        elif not text:
            if trace or name:
                raise UsageError(f"%{_NAME}: --trace and -o are for code; give "
                                 f"a statement, or use %%{_NAME} for a cell")
            display(_cell_memory.Now(top, peak))
            return None
        steps = self._compiled(text)
        measuring, value = _cell_memory.Measuring(trace), None
        try:
            with measuring:
                for code in steps:
                    value = eval(code, self.shell.user_ns, local_ns)
        finally:
            if measuring.ended:
                found = measuring.result().showing(top, peak)
                if name:
                    self.shell.user_ns[name] = found
                display(found)
        return value

    def _compiled(self, text):
        """Code objects, of which the last one's value is the cell's."""
        __tracebackhide__ = True
        shell = self.shell
        # Below a line for the magic's own, so that lines count as they stand.
        source = "\n" + shell.transform_cell(text)
        if shell.should_run_async(text, transformed_cell=source):
            raise UsageError(
                f"%%{_NAME} cannot run `await`: a magic is no coroutine. Write "
                "`with stratalloc.trace() as trace:` around it in a cell "
                "without the magic, and `trace` on its last line shows the same")
        name = shell.compile.cache(source, _number(shell), "\n" + text)
        tree = shell.transform_ast(shell.compile.ast_parse(source, name))
        last = []
        # A value that ";" silences is nobody's, and gone when the cell is.
        if (tree.body and isinstance(tree.body[-1], ast.Expr)
                and not DisplayHook.semicolon_at_end_of_expression(
                    source)):
            last = [shell.compile(ast.Expression(tree.body.pop().value), name,
                                  "eval")]
        return [shell.compile(tree, name, "exec"), *last]


def _checked(options):
    """(lines of a tree, name of a variable or "")."""
    top, name = options.get("top", str(_cell_memory.TOP)), options.get("o", "")
    if not (top.isascii() and top.isdecimal()):
        raise UsageError(f"%{_NAME}: --top {top} is no number of lines")
    if name and (not name.isidentifier() or keyword.iskeyword(name)):
        raise UsageError(f"%{_NAME}: -o {name} is no name of a variable")
    return int(top), name


def _number(shell):
    """N of the cell In[N] that runs, which tracebacks name."""
    running = getattr(shell.displayhook, "exec_result", None)
    return getattr(running, "execution_count", None) or shell.execution_count


def load(ipython):
    """The magics, from now on; a line that says what to do, if something is."""
    ipython.register_magics(GpuMem)
    why = _cell_memory.why_nothing()
    if why:
        print(f"stratalloc: {why}")


def unload(ipython):
    """They are gone; magics of that name that are another's stay."""
    for found in ipython.magics_manager.magics.values():
        owner = getattr(found.get(_NAME), "__self__", None)
        if type(owner).__name__ == GpuMem.__name__ and (
                type(owner).__module__ == __name__):
            del found[_NAME]
