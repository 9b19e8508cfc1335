# The image for a model of your own. It adds FOLDER to that of deploy/Dockerfile. Build it in the project's folder:
#
#   docker build --file deploy/own.Dockerfile --tag own:1 FOLDER

FROM mnist:1

ARG PIP_INDEX_URL
USER root
# FOLDER has model.py, mnist_input.py and what they import. It may have requirements.txt for more packages, and data.
COPY . /opt/own
ENV USER_DIR=/opt/own
RUN cd "$USER_DIR" && chmod -R a+rX . && \
  { test ! -e requirements.txt || \
    { python -m pip install --no-cache-dir --requirement requirements.txt && python -m pip check; }; }
USER 10001:10001
